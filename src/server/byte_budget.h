// A bound on what many connections hold together: who would go over it is told, nobody waits.
//   ByteBudget budget(512 << 20);
//   ByteBudget::Lease lease(budget);
//   if (!lease.grow_to(body.size())) return busy();     // given back when the lease goes
#pragma once

#include <atomic>
#include <cstddef>

namespace nib {

class ByteBudget {
 public:
  explicit ByteBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  class Lease {
   public:
    explicit Lease(ByteBudget& budget) : budget_(budget) {}
    ~Lease() { give_back(); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    bool grow_to(size_t bytes) {
      if (bytes <= held_) return true;
      const size_t more = bytes - held_;
      if (budget_.used_.fetch_add(more) + more > budget_.limit_bytes_) {
        budget_.used_ -= more;
        return false;
      }
      held_ = bytes;
      return true;
    }
    void give_back() {
      budget_.used_ -= held_;
      held_ = 0;
    }

   private:
    ByteBudget& budget_;
    size_t held_ = 0;
  };

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> used_{0};
};

}  // namespace nib
