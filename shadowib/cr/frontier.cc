#include "shadowib/cr/frontier.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shadowib/base/mappings.h"
#include "shadowib/cr/participant.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/objects/forced_signals.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// What is mapped, neighbours joined, by address.
std::vector<std::pair<std::uint64_t, std::uint64_t>> mapped_ranges() {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for_each_mapping([&](const Mapping& m) {
    if (!ranges.empty() && ranges.back().second == m.start)
      ranges.back().second = m.end;
    else
      ranges.emplace_back(m.start, m.end);
    return true;
  });
  return ranges;
}

void note_unmapped_regions() {
  if (registry().mrs.empty()) return;
  const auto ranges = mapped_ranges();
  if (ranges.empty()) return;
  for (ShadowMr& mr : registry().mrs) {
    const auto from = reinterpret_cast<std::uint64_t>(mr.mr.addr), to = from + mr.mr.length;
    auto it = std::upper_bound(ranges.begin(), ranges.end(), std::pair{from, ~std::uint64_t{0}});
    mr.unmapped = mr.mr.length != 0 && (it == ranges.begin() || (it - 1)->second < to);
  }
}

}  // namespace

void poll_everything() {
  Registry& r = registry();
  for (ShadowCq& cq : r.cqs) drain_completions(cq);
  for (ShadowChannel& channel : r.channels) drain_events(channel);
  for (ShadowContext& c : r.contexts) drain_async_events(c);
}

void note_state(ShadowQp& qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  qp.settled_state = g_backend.query_qp(qp.real, &attr, IBV_QP_STATE, &init) == 0 ? attr.qp_state : qp.state();
  qp.draining = qp.settled_state == IBV_QPS_SQD && attr.sq_draining != 0;
}

void note_frontier() {
  // A limit is asked for before its event is: one that fires in between is armed again and told too often, not never.
  for (ShadowSrq& srq : registry().srqs) {
    ibv_srq_attr attr{};
    srq.armed_limit = g_backend.query_srq(srq.real, &attr) == 0 ? attr.srq_limit : 0;
  }
  poll_everything();
  begin_anew_what_ran_out();
  note_unmapped_regions();
  for (ShadowQp& qp : registry().qps) {
    note_state(qp);
    note_fences(qp);
    retire_executed(qp);
    qp.frontier = executed_frontier(qp);
    // What became of requests to a peer that is gone has been said, if the error came meanwhile.
    qp.doomed = qp.doomed && qp.settled_state != IBV_QPS_ERR;
  }
  for (ShadowMw& mw : registry().mws) ShadowContext::of(mw.mw.context)->windows.settle(mw);
}

}  // namespace shadowib
