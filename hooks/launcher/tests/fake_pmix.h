// A libpmix that a test holds in its hand: rank 0 of two of namespace "job.1", whose launcher answers when it is told
// to.
#pragma once

#include <pmix.h>

extern "C" {
struct FakePmix {
  pmix_op_cbfunc_t fence;  // of the latest PMIx_Fence_nb that was not answered; null: none
  void* fence_data;
  pmix_hdlr_reg_cbfunc_t registration;
  void* registration_data;
  pmix_info_cbfunc_t control;
  void* control_data;
  pmix_lookup_cbfunc_t lookup;
  void* lookup_data;
  pmix_value_cbfunc_t get;
  void* get_data;
  // Events for this process alone, which the launcher does not hear of.
  int notified, notified_status, notified_infos;
  unsigned notified_rank;
  char notified_text[32];  // of the first info
  int deregistered;        // the number, plus one
  int calls;               // that came to the launcher
  int commit_waits;        // PMIx_Commit does not return while this is set
  int commits_entered;
  pmix_op_cbfunc_t disconnect;  // of the latest PMIx_Disconnect_nb
  void* disconnect_data;
  char spawned_environment[4096];  // of the first app of the latest PMIx_Spawn: "A=1\nB=2\n"
  pmix_status_t looked_up;         // what PMIx_Lookup answers
  pmix_op_cbfunc_t connect;        // of the latest PMIx_Connect_nb
  void* connect_data;
  pmix_spawn_cbfunc_t spawn;  // of the latest PMIx_Spawn_nb
  void* spawn_data;
  char session[256];  // its directory; empty: it gives none
};
FakePmix* fake_pmix(void);
}
