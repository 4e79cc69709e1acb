#include "shadowib/cr/participant.h"

#include <string.h>

#include <atomic>
#include <string>

#include "shadowib/base/guard.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/border.h"
#include "shadowib/cr/clusters.h"
#include "shadowib/cr/frontier.h"
#include "shadowib/cr/helper.h"
#include "shadowib/objects/border.h"
#include "shadowib/objects/border_log.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

std::atomic<const Companion*> g_companion{nullptr};

class VerbsParticipant final : public Participant {
 public:
  Status settle(const SettleContext& context) override { return settle_queues(context); }
  Status quiesce() override {
    SHADOWIB_TRY(flush_placement());
    SHADOWIB_TRY(park_helper(5000));
    note_frontier();
    note_border();
    BorderLog::release_kept();
    const int rc = g_backend.before_image != nullptr ? g_backend.before_image() : 0;
    if (rc != 0)
      return Status::of(Code::kRefused, rc, "backend %s cannot tell its memory from the program's: %s",
                        g_backend.name, ::strerror(rc));
    return {};
  }
  void stopping() override { set_paused(1); }
  void resume() override {
    begin_anew_what_ran_out();
    for (ShadowQp& qp : registry().qps) qp.awaits_peer = false;
    set_paused(0);
    unpark_helper();
  }
  Status tell_cluster(const federation::RunningCluster& cluster, federation::Policy policy) override {
    return tell_border(cluster, policy);
  }
  Status cluster_gone(unsigned cluster, federation::Incarnation incarnation) override {
    return tell_of_gone_cluster(cluster, incarnation);
  }
  void set_gate(unsigned cluster, std::uint64_t earliest, bool first) override {
    if (!guarded(Guard::kGateReplays)) earliest = kGateNothing;
    if (tell_gate(cluster, {earliest, 0, first, 0}) != 0)
      log_line(LogLevel::kError, "the backend has no gate for messages that cluster %u gets again", cluster);
  }
  std::uint64_t gate_earliest(unsigned cluster) override { return shadowib::gate_earliest(cluster); }
  void judge_cluster(unsigned cluster, bool failed) override { shadowib::judge_cluster(cluster, failed); }
  void clc_collected(federation::Sn sn) override { tell_clc_collected(sn); }
  bool log_fills() override { return border_log_fills(); }
  std::size_t log_bytes() override { return BorderLog::bytes_in_use(); }
  std::uint64_t logged_since(unsigned cluster) override { return shadowib::logged_since(cluster); }
  void freeze_border(bool frozen) override { shadowib::freeze_border(frozen); }
  void border_facts(federation::PerCluster* delivered, federation::PerCluster* trimmed) override {
    read_border_facts(delivered, trimmed);
  }
  void note_undecided_clc() override { shadowib::note_undecided_clc(); }
  void held_at_border(std::vector<federation::Stamp>* held) override { read_held(held); }
  void go_back_alone(bool alone, const federation::PerCluster& over) override {
    alone ? set_goes_back(over) : set_goes_not_back();
  }
  Status restart(const JobInfo& job, Exchange* exchange) override {
    if (const Companion* companion = g_companion; companion != nullptr) SHADOWIB_TRY(companion->before_rebuilding());
    forget_border_backend();  // of the image: what follows is for the next one
    forget_told_gates();
    SHADOWIB_TRY(introduce_cluster());
    Status status = rebuild_objects(job, exchange);
    if (status.ok()) unpark_helper();
    return status;
  }
  // A device pins what is registered with it, unless it takes pages on demand.
  void list_pinned(std::vector<PinnedRange>* ranges) override {
    if (!g_backend.needs_signals) return;
    SpinGuard guard(registry().lock);
    for (const ShadowMr& mr : registry().mrs)
      if (mr.mr.addr != nullptr && mr.mr.length != 0 && (mr.access & IBV_ACCESS_ON_DEMAND) == 0) {
        const auto start = reinterpret_cast<std::uint64_t>(mr.mr.addr);
        ranges->push_back({start, start + mr.mr.length});
      }
  }
  void count_objects(std::string* text) override { shadowib::count_objects(text); }
  void describe(std::string* json) override {
    describe_objects(json);
    const Companion* companion = g_companion;
    if (companion == nullptr || json->empty() || json->back() != '}') return;
    json->pop_back();
    companion->describe(json);
    *json += '}';
  }

 private:
  static void set_paused(int paused) {
    if (g_backend.set_paused != nullptr && guarded(Guard::kPauseRetries)) g_backend.set_paused(paused);
  }
};

}  // namespace

void set_companion(const Companion* companion) { g_companion = companion; }

Participant* verbs_participant() { return &Lasting<VerbsParticipant>::get(); }

}  // namespace shadowib
