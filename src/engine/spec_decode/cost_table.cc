#include "engine/spec_decode/cost_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

#include "base/check.h"
#include "base/file.h"

namespace nib {

namespace {

// The largest size of the bucket: every size up to 16, then eight buckets from one power of two to the next.
int64_t bucket_of(int64_t size) {
  if (size <= 16) return size;
  const int64_t width = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size - 1))) / 8;
  return (size + width - 1) / width * width;
}

// Each point at least as high as those before it.
void make_monotone(std::vector<CostCurve::Point>& points) {
  for (size_t i = 1; i < points.size(); ++i) points[i].ns = std::max(points[i].ns, points[i - 1].ns);
}

Json rows_of(const CostCurve& curve) {
  Json rows = Json::array();
  for (const CostCurve::Point& p : curve.points()) rows.push_back({p.size, p.ns});
  return rows;
}

bool read_point(const Json& v, int64_t after, CostCurve::Point& point) {
  if (!v.is_array() || v.size() != 2 || !v[0].is_number_integer() || !v[1].is_number()) return false;
  point = {v[0].get<int64_t>(), v[1].get<double>()};
  return point.size > after && std::isfinite(point.ns) && point.ns >= 0;
}

Result<CostCurve> read_curve(const Json& json, const char* key, const std::string& file) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array())
    return invalid("{}: \"{}\" must be a list of pairs [size, nanoseconds]", file, key);
  std::vector<CostCurve::Point> points;
  for (const Json& v : *it) {
    CostCurve::Point point{};
    if (!read_point(v, points.empty() ? 0 : points.back().size, point))
      return invalid("{}: \"{}\": [size, nanoseconds] with growing sizes from 1 on is expected, got {}", file, key,
                     v.dump());
    points.push_back(point);
  }
  return CostCurve(std::move(points));
}

}  // namespace

CostCurve::CostCurve(std::vector<Point> points) : given_(true), points_(std::move(points)) { make_monotone(points_); }

void CostCurve::add(Bucket& bucket, double ns) {
  bucket.ns[bucket.count++ % kTimes] = ns;
  bucket.last_record = ++num_records_;
  std::vector<double> sorted(bucket.ns.begin(), bucket.ns.begin() + std::min(bucket.count, kTimes));
  std::ranges::sort(sorted);
  bucket.median = sorted[sorted.size() / 2];
}

void CostCurve::record(int64_t size, double ns) {
  NIB_CHECK(size >= 1 && ns >= 0, "size {}, {} ns", size, ns);
  if (given_) return;
  add(buckets_[bucket_of(size)], ns);
  rebuild();
}

void CostCurve::rebuild() {
  std::erase_if(buckets_, [&](const auto& b) { return b.second.last_record + kMemory < num_records_; });
  points_.clear();
  for (const auto& [size, bucket] : buckets_)
    if (bucket.count >= kLeastTimes) points_.push_back({size, bucket.median});
  make_monotone(points_);
}

double CostCurve::at(int64_t size) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1 || size <= points_[0].size) return points_[0].ns;
  auto right = std::ranges::lower_bound(points_, size, {}, &Point::size);
  if (right == points_.end()) --right;
  const Point &a = *(right - 1), &b = *right;
  return a.ns + (b.ns - a.ns) * static_cast<double>(size - a.size) / static_cast<double>(b.size - a.size);
}

Json CostTable::to_json() const { return {{"draft", rows_of(draft)}, {"verify", rows_of(verify)}}; }

Result<CostTable> CostTable::from_json(const Json& json, const std::string& file) {
  if (!json.is_object()) return invalid("{}: a JSON object with \"draft\" and \"verify\" is expected", file);
  CostTable table;
  NIB_ASSIGN(table.draft, read_curve(json, "draft", file));
  NIB_ASSIGN(table.verify, read_curve(json, "verify", file));
  return table;
}

Result<CostTable> CostTable::load(const std::filesystem::path& path) {
  NIB_ASSIGN(const std::string text, read_file(path));
  const Result<Json> json = parse_json(text);
  if (!json.ok()) return invalid("{}: {}", path.string(), json.status().message());
  return from_json(*json, path.string());
}

Status CostTable::save(const std::filesystem::path& path) const {
  std::ofstream out(path);
  out << to_json().dump() << '\n';
  out.close();
  if (!out) return invalid("{}: the cost table cannot be written", path.string());
  return {};
}

}  // namespace nib
