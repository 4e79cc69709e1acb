// Calls whose answer comes later, by a callback. Each is listed from the call to its answer. The launcher's answers
// come by way of the library's thread; after a restart those still listed, and all later ones, are answered by a
// thread of ours, which sleeps until then. It is a thread of the program to a checkpoint: callbacks are the program's
// code.
#pragma once

#include <pmix.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "hooks/launcher/answering.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/rank.h"
#include "shadowib/base/lock.h"

namespace shadowib {

struct LauncherRequest {
  enum class Kind : std::uint8_t {
    kOperation,     // PMIx_Notify_event and the like: done as soon as asked for
    kFence,         // when all have come
    kGet,           // when the rank asked about has committed
    kRegistration,  // of an event handler
    kControl,       // PMIx_Job_control_nb: done, with no results
    kForeign,       // nothing that we could answer: no checkpoint while one is listed
  };
  Kind kind = Kind::kOperation;
  void* callback = nullptr;  // of the type that goes with the call
  void* cbdata = nullptr;
  const char* name = "";  // of the call

  std::string set;                     // fence
  std::vector<std::uint32_t> missing;  // fence: ranks not seen to have come
  RanksByNamespace others;             // fence: likewise, of other namespaces
  std::uint64_t count = 0;             // fence
  pmix_proc_t proc{};                  // get
  std::string key;                     // get
  bool waits = true;                   // get: for a rank that has not committed yet
  pmix_value_t* value = nullptr;       // get: the library has it in this process's memory
  pmix_app_t* apps = nullptr;          // spawn: copies (spawn.h), freed when the answer comes
  std::size_t napps = 0;               // spawn
  std::string port;        // spawn: under which what is spawned meets this rank (meeting.h); "": it does not
  std::size_t number = 0;  // registration: of the handler, if it is here (events.h)

  bool forwarded = false;  // the library has been given it, and has not answered
  bool told = false;       // our thread has answered it
};

// Inside (hooks/threads/stop.h): they belong to the arena.
LauncherRequest* new_request(LauncherRequest::Kind kind, const char* name, void* callback, void* cbdata);
// Likewise, for callers that are not inside.
LauncherRequest* make_request(LauncherRequest::Kind kind, const char* name, void* callback, void* cbdata);

// Lists it. If the launcher is gone it will be answered from here on, before or after this returns.
void list_request(LauncherRequest* request);
// It needs no answer: the library would not take it, or has answered.
void drop_request(LauncherRequest* request);

// Lists it, and has the library given it by `forward` while there is a launcher.
template <typename Forward>
pmix_status_t track_request(LauncherRequest* request, Forward forward) {
  list_request(request);
  if (launcher_rank().gone.load()) return PMIX_SUCCESS;
  const pmix_status_t status = forward(request);
  if (status != PMIX_SUCCESS) drop_request(request);  // done already, or never: the callback does not come
  return status;
}

// Callbacks for the library, with the request as cbdata: they pass the answer on unless it has been given already.
void on_operation(pmix_status_t status, void* request);
void on_value(pmix_status_t status, pmix_value_t* value, void* request);
void on_registration(pmix_status_t status, std::size_t id, void* request);
void on_info(pmix_status_t status, pmix_info_t* info, std::size_t ninfo, void* request, pmix_release_cbfunc_t release,
             void* release_data);
void on_lookup(pmix_status_t status, pmix_pdata_t* data, std::size_t ndata, void* request);
void on_spawn(pmix_status_t status, char* name, void* request);
void on_connection(pmix_status_t status, void* request);

// A call that waits in the program's thread, where it can be stopped, for what comes by callback.
struct AwaitedAnswer {
  std::atomic<std::uint32_t> done{0};
  pmix_status_t status = PMIX_SUCCESS;

  void finish(pmix_status_t with) {
    status = with;
    done.store(1);
    futex_wake(&done, 1);
  }
  pmix_status_t wait() {
    while (done.load() == 0) futex_wait(&done, 0);
    return status;
  }
};

// Starts the thread, if it is not there. An errno or 0.
int start_answering();

}  // namespace shadowib
