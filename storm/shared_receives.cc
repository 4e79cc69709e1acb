#include "storm/shared_receives.h"

namespace storm {
namespace {

ibv_srq* create(ibv_pd* domain, LimitListener* listener) {
  ibv_srq_init_attr attr{};
  attr.srq_context = listener;
  attr.attr.max_wr = kSharedReceives;
  attr.attr.max_sge = 4;
  return made(ibv_create_srq(domain, &attr), "ibv_create_srq");
}

}  // namespace

SharedReceives::SharedReceives(ibv_pd* domain, std::uint64_t key)
    : domain_(domain),
      memory_(static_cast<std::size_t>(kSharedReceives) * kSharedBytes),
      region_(made(ibv_reg_mr(domain, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr")),
      queue_(create(domain, this)),
      receives_(nullptr, queue_.get(), memory_.data(), kSharedReceives, kSharedBytes, 3,
                {region_->lkey, region_->lkey}, key) {
  fill_and_arm();
}

void SharedReceives::limit_reached() {
  const std::uint64_t reached = reached_.fetch_add(1) + 1;
  if (reached > armed_.load())
    ledger().fault(Fault::kEvent, "a shared receive queue whose limit was armed %lu times has reached it %lu times",
                   armed_.load(), reached);
}

// With so many posted that the limit is not reached at once.
void SharedReceives::fill_and_arm() {
  receives_.post(receives_.free_places());
  ibv_srq_attr attr{};
  attr.srq_limit = kLimit;
  ++armed_;
  STORM_ZERO(ibv_modify_srq(queue_.get(), &attr, IBV_SRQ_LIMIT));
}

bool SharedReceives::step() {
  // Fewer than the limit are left in the queue: the completions of all others are there or come.
  if (reached_.load() != armed_.load() || receives_.free_places() <= kSharedReceives - kLimit) return false;
  fill_and_arm();
  return true;
}

}  // namespace storm
