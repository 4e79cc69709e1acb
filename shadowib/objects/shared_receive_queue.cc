#include "shadowib/objects/shared_receive_queue.h"

#include <algorithm>
#include <utility>

namespace shadowib {

std::vector<RecvSlot*> SharedReceiveLog::pending() {
  std::vector<std::pair<std::uint64_t, RecvSlot*>> found;
  for (std::uint64_t i = 0; i < slots_.slots(); ++i)
    if (!slots_.slot(i).done()) found.emplace_back(order_[i], &slots_.slot(i));
  std::sort(found.begin(), found.end());
  std::vector<RecvSlot*> in_order;
  for (const auto& [order, slot] : found) in_order.push_back(slot);
  return in_order;
}

std::uint32_t SharedReceiveLog::pending_count() {
  std::uint32_t count = 0;
  for (std::uint64_t i = 0; i < slots_.slots(); ++i) count += !slots_.slot(i).done();
  return count;
}

}  // namespace shadowib
