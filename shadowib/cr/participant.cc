#include "shadowib/cr/participant.h"

#include <new>

#include "shadowib/cr/helper.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

RestartStep g_before_rebuilding = nullptr;

class VerbsParticipant final : public Participant {
 public:
  Status settle(const SettleContext& context) override { return settle_queues(context); }
  Status quiesce() override {
    SHADOWIB_TRY(park_helper(5000));
    note_frontier();
    return {};
  }
  void stopping() override { set_paused(1); }
  void resume() override {
    set_paused(0);
    unpark_helper();
  }
  Status restart(const JobInfo& job, Exchange* exchange) override {
    if (g_before_rebuilding != nullptr) SHADOWIB_TRY(g_before_rebuilding());
    Status status = rebuild_objects(job, exchange);
    if (status.ok()) unpark_helper();
    return status;
  }
  void describe(std::string* json) override { describe_objects(json); }

 private:
  static void set_paused(int paused) {
    if (g_backend.set_paused != nullptr) g_backend.set_paused(paused);
  }
};

}  // namespace

void before_rebuilding(RestartStep step) { g_before_rebuilding = step; }

Participant* verbs_participant() {
  alignas(VerbsParticipant) static char storage[sizeof(VerbsParticipant)];
  static Participant* const participant = new (storage) VerbsParticipant;
  return participant;
}

}  // namespace shadowib
