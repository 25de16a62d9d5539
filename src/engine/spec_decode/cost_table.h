// What a step costs in nanoseconds: verifying by the number of its rows, drafting by the number of its sequences.
//   CostTable costs;                        // or CostTable::load(path), which never changes
//   costs.verify.record(rows, ns);          // after every step
//   costs.verify.at(rows + 7);              // between, and beyond, what was measured
// Curves never fall with size. Owned by the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib {

// Cost as a function of size. A size counts once it was measured three times: the median of its last seven times. Sizes
// above 16 share buckets of an eighth of an octave. A bucket that saw nothing for 4,096 records is forgotten, so that
// one bad spell cannot rule out a size for good.
class CostCurve {
 public:
  struct Point {
    int64_t size;
    double ns;
  };

  CostCurve() = default;
  // REQUIRES points in ascending order of size. A curve that is given takes no records.
  explicit CostCurve(std::vector<Point> points);

  // REQUIRES size >= 1 and ns >= 0.
  void record(int64_t size, double ns);
  bool empty() const { return points_.empty(); }
  // Linear between points; beyond the last with the last slope; below the first, and with one point only, flat. 0 while
  // nothing is known, so that what was never tried looks cheap and is tried.
  double at(int64_t size) const;
  const std::vector<Point>& points() const { return points_; }  // ascending in both

 private:
  static constexpr int64_t kTimes = 7, kLeastTimes = 3, kMemory = 4096;
  struct Bucket {
    std::array<double, kTimes> ns{};
    int64_t count = 0;        // records so far
    int64_t last_record = 0;  // of this curve's records, the latest that fell here
    double median = 0;
  };

  void add(Bucket& bucket, double ns);
  void rebuild();

  bool given_ = false;
  int64_t num_records_ = 0;
  std::map<int64_t, Bucket> buckets_;  // by the largest size in them
  std::vector<Point> points_;
};

struct CostTable {
  CostCurve draft;   // by sequences that the drafter serves
  CostCurve verify;  // by rows of the step

  // {"draft": [[sequences, ns], ...], "verify": [[rows, ns], ...]}
  Json to_json() const;
  // A table that never changes. `file` names the source in errors.
  static Result<CostTable> from_json(const Json& json, const std::string& file);
  static Result<CostTable> load(const std::filesystem::path& path);
  Status save(const std::filesystem::path& path) const;
};

}  // namespace nib
