#include "shadowib/cr/border.h"

#include <errno.h>
#include <string.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "shadowib/base/lasting.h"
#include "shadowib/base/this_host.h"
#include "shadowib/objects/border.h"

namespace shadowib {
namespace {

struct SavedQueuePair {
  BorderState state;
  std::vector<BorderResult> results;
};

// Lies in the image, as the objects do that it names.
struct SavedBorder {
  std::vector<unsigned char> identity;                     // empty: nothing was kept
  std::string machine;                                     // whose clock the logs have
  std::unordered_map<const void*, std::uint32_t> numbers;  // real ones, by object
  std::unordered_map<const ShadowQp*, SavedQueuePair> queue_pairs;
};
bool g_goes_back = false;
federation::PerCluster g_over;

SavedBorder& saved() { return Lasting<SavedBorder>::get(); }

void note_numbers(const Registry& r) {
  for (const ShadowMr& mr : r.mrs)
    if (mr.real != nullptr) saved().numbers[&mr] = mr.real->rkey;
  for (const ShadowMw& mw : r.mws)
    if (mw.real != nullptr) saved().numbers[&mw] = mw.real->rkey;
  for (const ShadowSrq& srq : r.srqs)
    if (srq.xrcd != nullptr) saved().numbers[&srq] = srq.real_number.value;
  for (const ShadowQp& qp : r.qps)
    if (qp.real != nullptr) saved().numbers[&qp] = qp.real->qp_num;
}

void note_queue_pair(const ShadowQp& qp) {
  SavedQueuePair now{};
  int rc = g_backend.border_state(qp.real, &now.state, nullptr, 0);
  if (rc == 0 && now.state.results != 0) {
    now.results.resize(now.state.results);
    rc = g_backend.border_state(qp.real, &now.state, now.results.data(), now.results.size());
  }
  if (rc == ENOENT) return;
  if (rc == 0) saved().queue_pairs.emplace(&qp, std::move(now));
}

Status refused(int error, const char* what, std::uint32_t number) {
  return Status::of(Code::kRefused, error, "a cluster cannot go back alone: %s 0x%x: %s", what, number,
                    ::strerror(error));
}

Status want(const void* object, BackendNumber kind, const char* what) {
  if (!g_goes_back) return {};
  const auto it = saved().numbers.find(object);
  if (it == saved().numbers.end()) return {};
  const int rc = g_backend.want_number(kind, it->second);
  return rc == 0 ? Status() : refused(rc, what, it->second);
}

}  // namespace

void note_border() {
  saved() = SavedBorder();
  if (!is_at_border() || g_backend.border_state == nullptr || g_backend.identity == nullptr) return;
  const Registry& r = registry();
  saved().identity.resize(g_backend.identity(nullptr, 0));
  g_backend.identity(saved().identity.data(), saved().identity.size());
  saved().machine = this_machine();
  note_numbers(r);
  for (const ShadowQp& qp : r.qps)
    if (qp.real != nullptr) note_queue_pair(qp);
}

void set_goes_back(const federation::PerCluster& over) {
  g_goes_back = true;
  g_over = over;
}
void set_goes_not_back() { g_goes_back = false; }
bool goes_back() { return g_goes_back; }

Status restore_adapter() {
  if (!g_goes_back || registry().contexts.empty()) return {};
  if (g_backend.restore_identity == nullptr || g_backend.restore_border == nullptr ||
      g_backend.want_number == nullptr)
    return Status::of(Code::kRefused, EOPNOTSUPP,
                      "a cluster cannot go back alone on backend %s: restart with --backend ib2tcp", g_backend.name);
  if (saved().identity.empty())
    return Status(Code::kRefused, ENOENT,
                  "a cluster cannot go back alone to this set: it does not say by which numbers peers know the "
                  "adapter; restart a set of the whole job");
  freeze_border(true);
  const bool one_clock = !saved().machine.empty() && saved().machine == this_machine();
  for (unsigned i = 0; i < g_over.clusters; ++i)
    if (g_over[i] != 0 && one_clock) tell_cluster_gone(i, g_over[i]);
  const int rc = g_backend.restore_identity(saved().identity.data(), saved().identity.size());
  return rc == 0 ? Status() : refused(rc, "the adapter of backend interface", kBackendAbiVersion);
}

Status want_number_of(const ShadowMr& mr) { return want(&mr, kNumberOfMemoryRegion, "memory region"); }
Status want_number_of(const ShadowMw& mw) { return want(&mw, kNumberOfMemoryWindow, "memory window"); }
Status want_number_of(const ShadowSrq& srq) {
  return srq.xrcd != nullptr ? want(&srq, kNumberOfXrcQueue, "shared receive queue") : Status();
}
Status want_number_of(const ShadowQp& qp) { return want(&qp, kNumberOfQueuePair, "queue pair"); }

Status restore_border_of(ShadowQp& qp) {
  if (!g_goes_back) return {};
  const auto it = saved().queue_pairs.find(&qp);
  if (it == saved().queue_pairs.end()) return {};
  const int rc = g_backend.restore_border(qp.real, &it->second.state, it->second.results.data());
  return rc == 0 ? Status() : refused(rc, "the connection of queue pair", qp.qp_num.value);
}

void open_restored_border() {
  if (g_goes_back) freeze_border(false);
}

void forget_border_logs() {
  for (ShadowQp& qp : registry().qps) qp.border_log.reset();
}

}  // namespace shadowib
