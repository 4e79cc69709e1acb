// What a rank asks for with others: fences, the end of the job; and what is passed on while there is a
// launcher and refused when there is none.
#include <cstdio>
#include <cstring>
#include <string_view>

#include "hooks/job/current_job.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/meeting.h"
#include "hooks/launcher/pmix_library.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/requests.h"
#include "hooks/launcher/spawn.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

using Kind = LauncherRequest::Kind;

// The ranks that `procs` mean, all for none; false if one is of another namespace.
bool ranks_of(const pmix_proc_t* procs, std::size_t nprocs, std::vector<std::uint32_t>* ranks) {
  const LauncherRank& own = launcher_rank();
  bool all = procs == nullptr || nprocs == 0;
  for (std::size_t i = 0; !all && i < nprocs; ++i) {
    if (std::string_view(procs[i].nspace) != own.name) return false;
    all = procs[i].rank == PMIX_RANK_WILDCARD;
    if (!all) ranks->push_back(procs[i].rank);
  }
  if (!all) return true;
  ranks->clear();
  for (std::uint32_t rank = 0; rank < own.size; ++rank) ranks->push_back(rank);
  return true;
}

// The ranks of a fence. False: all of another namespace are meant, whose size only the launcher knows.
bool ranks_by_namespace(const pmix_proc_t* procs, std::size_t nprocs, RanksByNamespace* ranks) {
  const LauncherRank& own = launcher_rank();
  std::vector<std::uint32_t>& of_own = (*ranks)[own.name];
  bool all = procs == nullptr || nprocs == 0;
  for (std::size_t i = 0; i < nprocs && procs != nullptr; ++i) {
    const bool ours = std::string_view(procs[i].nspace) == own.name, any = procs[i].rank == PMIX_RANK_WILDCARD;
    if (any && !ours) return false;
    if (any)
      all = true;
    else
      (*ranks)[procs[i].nspace].push_back(procs[i].rank);
  }
  for (std::uint32_t rank = 0; all && rank < own.size; ++rank) of_own.push_back(rank);
  if (of_own.empty()) ranks->erase(own.name);
  return true;
}

// This rank comes to its next fence of these.
pmix_status_t come_to_fence(const pmix_proc_t* procs, std::size_t nprocs, LauncherRequest* r) {
  Inside inside;
  LauncherRank& own = launcher_rank();
  RanksByNamespace ranks;
  if (!ranks_by_namespace(procs, nprocs, &ranks)) {
    r->kind = Kind::kForeign;
    return own.gone.load() ? PMIX_ERR_NOT_SUPPORTED : PMIX_SUCCESS;
  }
  const bool several = ranks.size() != 1 || ranks.begin()->first != own.name;
  if (several) r->set = fence_set(&ranks);
  r->missing = std::move(ranks[own.name]);
  ranks.erase(own.name);
  r->others = std::move(ranks);
  if (!several) r->set = fence_set(&r->missing, own.size);
  {
    SpinGuard guard(own.lock);
    r->count = ++own.fences[r->set];
  }
  if (!own.gone.load()) return PMIX_SUCCESS;
  const Status status = Board(job_exchange(), job_info().epoch, own.name).publish_fence(r->set, own.rank, r->count);
  if (status.ok()) return PMIX_SUCCESS;
  log_line(LogLevel::kError, "rank %u cannot tell that it has come to a fence: %s", own.rank, status.text());
  return PMIX_ERR_COMM_FAILURE;
}

pmix_status_t fence(const PmixLibrary& library, const pmix_proc_t* procs, std::size_t nprocs, const pmix_info_t* info,
                    std::size_t ninfo, const char* name, pmix_op_cbfunc_t callback, void* data) {
  LauncherRequest* const r = make_request(Kind::kFence, name, reinterpret_cast<void*>(callback), data);
  if (const pmix_status_t status = come_to_fence(procs, nprocs, r); status != PMIX_SUCCESS) {
    drop_request(r);
    return status;
  }
  return track_request(
      r, [&](void* request) { return library.Fence_nb(procs, nprocs, info, ninfo, on_operation, request); });
}

// Ranks that a rank has spawned take leave of it by this (MPI_Comm_disconnect). Only the launcher keeps account of
// who is connected, so without one there is nothing to do, and nobody to wait for: the ranks have met before by
// messages.
pmix_status_t disconnect(const PmixLibrary& library, const pmix_proc_t procs[], size_t nprocs,
                         const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t callback, void* data) {
  LauncherRequest* const r =
      make_request(Kind::kOperation, "PMIx_Disconnect", reinterpret_cast<void*>(callback), data);
  return track_request(
      r, [&](void* request) { return library.Disconnect_nb(procs, nprocs, info, ninfo, on_operation, request); });
}

void end_of_fence(pmix_status_t status, void* awaited) { static_cast<AwaitedAnswer*>(awaited)->finish(status); }

// Asks all members for the end of the job, or of the ranks meant.
pmix_status_t abort_job(int status, const char* message, const pmix_proc_t* procs, std::size_t nprocs) {
  Inside inside;
  const LauncherRank& own = launcher_rank();
  AbortRequest request{own.rank, status, message != nullptr ? message : "", {}};
  if (!ranks_of(procs, nprocs, &request.ranks)) return PMIX_ERR_NOT_SUPPORTED;
  if (request.ranks.size() == own.size) request.ranks.clear();
  const Status told = job_exchange()->publish(abort_key(job_info().epoch), encode_abort(own.name, request));
  if (told.ok()) return PMIX_SUCCESS;
  log_line(LogLevel::kError, "rank %u cannot tell the job that it aborts: %s", own.rank, told.text());
  return PMIX_ERR_COMM_FAILURE;
}

pmix_status_t not_without_launcher(const char* name) {
  log_line(LogLevel::kWarn, "%s: the job was restarted without a launcher, and nobody else can do that", name);
  return PMIX_ERR_NOT_SUPPORTED;
}

// Calls that only a launcher can answer: a blocking one, and one with a callback.
template <typename Forward>
pmix_status_t foreign(const char* name, Forward forward) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call(name);
  if (!call.nested() && launcher_rank().gone.load()) return not_without_launcher(name);
  return forward(*library);
}

template <typename Callback, typename Forward>
pmix_status_t foreign_nb(const char* name, Callback ours, Callback callback, void* data, Forward forward) {
  return foreign(name, [&](const PmixLibrary& library) {
    if (callback == nullptr) return forward(library, callback, data);
    LauncherRequest* const r = make_request(Kind::kForeign, name, reinterpret_cast<void*>(callback), data);
    return track_request(r, [&](void* request) { return forward(library, ours, request); });
  });
}

}  // namespace
}  // namespace shadowib

using namespace shadowib;

extern "C" {

PMIX_EXPORT pmix_status_t PMIx_Fence_nb(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                                        size_t ninfo, pmix_op_cbfunc_t callback, void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Fence_nb");
  if (call.nested() || callback == nullptr) return library->Fence_nb(procs, nprocs, info, ninfo, callback, data);
  return fence(*library, procs, nprocs, info, ninfo, "PMIx_Fence_nb", callback, data);
}

// Waits where it can be stopped: others come when they come.
PMIX_EXPORT pmix_status_t PMIx_Fence(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                                     size_t ninfo) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  AwaitedAnswer awaited;
  {
    LauncherCall call("PMIx_Fence");
    if (call.nested()) return library->Fence(procs, nprocs, info, ninfo);
    const pmix_status_t status = fence(*library, procs, nprocs, info, ninfo, "PMIx_Fence", end_of_fence, &awaited);
    if (status == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    if (status != PMIX_SUCCESS) return status;
  }
  return awaited.wait();
}

PMIX_EXPORT pmix_status_t PMIx_Job_control_nb(const pmix_proc_t targets[], size_t ntargets,
                                              const pmix_info_t directives[], size_t ndirs,
                                              pmix_info_cbfunc_t callback, void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Job_control_nb");
  const auto forward = [&](pmix_info_cbfunc_t function, void* request) {
    return library->Job_control_nb(targets, ntargets, directives, ndirs, function, request);
  };
  if (call.nested()) return forward(callback, data);
  if (callback == nullptr) return launcher_rank().gone.load() ? PMIX_SUCCESS : forward(nullptr, data);
  LauncherRequest* const r =
      make_request(Kind::kControl, "PMIx_Job_control_nb", reinterpret_cast<void*>(callback), data);
  return track_request(r, [&](void* request) { return forward(on_info, request); });
}

PMIX_EXPORT pmix_status_t PMIx_Abort(int status, const char message[], pmix_proc_t procs[], size_t nprocs) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  if (launcher_rank().gone.load()) return abort_job(status, message, procs, nprocs);
  return library->Abort(status, message, procs, nprocs);  // no call for a checkpoint to wait for
}

PMIX_EXPORT pmix_status_t PMIx_Job_control(const pmix_proc_t targets[], size_t ntargets,
                                           const pmix_info_t directives[], size_t ndirs, pmix_info_t** results,
                                           size_t* nresults) {
  return foreign("PMIx_Job_control", [&](const PmixLibrary& library) {
    return library.Job_control(targets, ntargets, directives, ndirs, results, nresults);
  });
}

PMIX_EXPORT pmix_status_t PMIx_Publish(const pmix_info_t info[], size_t ninfo) {
  return foreign("PMIx_Publish", [&](const PmixLibrary& library) {
    const pmix_status_t status = library.Publish(info, ninfo);
    if (status == PMIX_SUCCESS) note_published(info, ninfo);
    return status;
  });
}

PMIX_EXPORT pmix_status_t PMIx_Publish_nb(const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t callback,
                                          void* data) {
  return foreign_nb("PMIx_Publish_nb", on_operation, callback, data,
                    [&](const PmixLibrary& library, auto f, void* d) {
                      const pmix_status_t status = library.Publish_nb(info, ninfo, f, d);
                      if (status == PMIX_SUCCESS) note_published(info, ninfo);
                      return status;
                    });
}

PMIX_EXPORT pmix_status_t PMIx_Lookup(pmix_pdata_t data[], size_t ndata, const pmix_info_t info[], size_t ninfo) {
  return foreign("PMIx_Lookup", [&](const PmixLibrary& library) {
    const pmix_status_t status = library.Lookup(data, ndata, info, ninfo);
    note_lookup(data, ndata, status);
    return status;
  });
}

PMIX_EXPORT pmix_status_t PMIx_Lookup_nb(char** keys, const pmix_info_t info[], size_t ninfo,
                                         pmix_lookup_cbfunc_t callback, void* data) {
  return foreign_nb("PMIx_Lookup_nb", on_lookup, callback, data, [&](const PmixLibrary& library, auto f, void* d) {
    return library.Lookup_nb(keys, info, ninfo, f, d);
  });
}

PMIX_EXPORT pmix_status_t PMIx_Unpublish(char** keys, const pmix_info_t info[], size_t ninfo) {
  return foreign("PMIx_Unpublish", [&](const PmixLibrary& library) {
    note_unpublished(keys);
    return library.Unpublish(keys, info, ninfo);
  });
}

PMIX_EXPORT pmix_status_t PMIx_Unpublish_nb(char** keys, const pmix_info_t info[], size_t ninfo,
                                            pmix_op_cbfunc_t callback, void* data) {
  return foreign_nb("PMIx_Unpublish_nb", on_operation, callback, data,
                    [&](const PmixLibrary& library, auto f, void* d) {
                      note_unpublished(keys);
                      return library.Unpublish_nb(keys, info, ninfo, f, d);
                    });
}

PMIX_EXPORT pmix_status_t PMIx_Spawn(const pmix_info_t job_info[], size_t ninfo, const pmix_app_t apps[],
                                     size_t napps, pmix_nspace_t nspace) {
  return foreign("PMIx_Spawn", [&](const PmixLibrary& library) {
    const char* const port = port_of(apps, napps);
    pmix_app_t* const ours = apps_in_job(apps, napps);
    const pmix_status_t status = library.Spawn(job_info, ninfo, ours != nullptr ? ours : apps, napps, nspace);
    free_apps_in_job(ours, napps);
    if (status == PMIX_SUCCESS && port != nullptr) begin_meeting(port);
    return status;
  });
}

PMIX_EXPORT pmix_status_t PMIx_Spawn_nb(const pmix_info_t job_info[], size_t ninfo, const pmix_app_t apps[],
                                        size_t napps, pmix_spawn_cbfunc_t callback, void* data) {
  return foreign("PMIx_Spawn_nb", [&](const PmixLibrary& library) {
    pmix_app_t* const ours = apps_in_job(apps, napps);
    const pmix_app_t* const passed = ours != nullptr ? ours : apps;
    if (callback == nullptr) return library.Spawn_nb(job_info, ninfo, passed, napps, nullptr, data);
    LauncherRequest* const r = make_request(Kind::kForeign, "PMIx_Spawn_nb", reinterpret_cast<void*>(callback), data);
    r->apps = ours;
    r->napps = napps;
    if (const char* const port = port_of(apps, napps); port != nullptr) {
      Inside inside;
      r->port = port;
    }
    const pmix_status_t status = track_request(
        r, [&](void* request) { return library.Spawn_nb(job_info, ninfo, passed, napps, on_spawn, request); });
    if (status != PMIX_SUCCESS) free_apps_in_job(ours, napps);
    return status;
  });
}

PMIX_EXPORT pmix_status_t PMIx_Connect(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                                       size_t ninfo) {
  return foreign("PMIx_Connect", [&](const PmixLibrary& library) {
    const pmix_status_t status = library.Connect(procs, nprocs, info, ninfo);
    note_connected(status);
    return status;
  });
}

PMIX_EXPORT pmix_status_t PMIx_Connect_nb(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                                          size_t ninfo, pmix_op_cbfunc_t callback, void* data) {
  return foreign_nb("PMIx_Connect_nb", on_connection, callback, data,
                    [&](const PmixLibrary& library, auto f, void* d) {
                      const pmix_status_t status = library.Connect_nb(procs, nprocs, info, ninfo, f, d);
                      if (status != PMIX_SUCCESS || f == nullptr) note_connected(status);
                      return status;
                    });
}

PMIX_EXPORT pmix_status_t PMIx_Disconnect(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                                          size_t ninfo) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  AwaitedAnswer awaited;
  {
    LauncherCall call("PMIx_Disconnect");
    if (call.nested()) return library->Disconnect(procs, nprocs, info, ninfo);
    const pmix_status_t status = disconnect(*library, procs, nprocs, info, ninfo, end_of_fence, &awaited);
    if (status == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    if (status != PMIX_SUCCESS) return status;
  }
  return awaited.wait();
}

PMIX_EXPORT pmix_status_t PMIx_Disconnect_nb(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                                             size_t ninfo, pmix_op_cbfunc_t callback, void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Disconnect_nb");
  if (call.nested() || callback == nullptr) return library->Disconnect_nb(procs, nprocs, info, ninfo, callback, data);
  return disconnect(*library, procs, nprocs, info, ninfo, callback, data);
}

PMIX_EXPORT pmix_status_t PMIx_Resolve_peers(const char* node, const pmix_nspace_t nspace, pmix_proc_t** procs,
                                             size_t* nprocs) {
  return foreign("PMIx_Resolve_peers",
                 [&](const PmixLibrary& library) { return library.Resolve_peers(node, nspace, procs, nprocs); });
}

PMIX_EXPORT pmix_status_t PMIx_Resolve_nodes(const pmix_nspace_t nspace, char** nodes) {
  return foreign("PMIx_Resolve_nodes",
                 [&](const PmixLibrary& library) { return library.Resolve_nodes(nspace, nodes); });
}

PMIX_EXPORT pmix_status_t PMIx_Query_info(pmix_query_t queries[], size_t nqueries, pmix_info_t** results,
                                          size_t* nresults) {
  return foreign("PMIx_Query_info", [&](const PmixLibrary& library) {
    return library.Query_info(queries, nqueries, results, nresults);
  });
}

PMIX_EXPORT pmix_status_t PMIx_Query_info_nb(pmix_query_t queries[], size_t nqueries, pmix_info_cbfunc_t callback,
                                             void* data) {
  return foreign_nb("PMIx_Query_info_nb", on_info, callback, data, [&](const PmixLibrary& library, auto f, void* d) {
    return library.Query_info_nb(queries, nqueries, f, d);
  });
}

PMIX_EXPORT pmix_status_t PMIx_Log(const pmix_info_t data[], size_t ndata, const pmix_info_t directives[],
                                   size_t ndirs) {
  return foreign("PMIx_Log", [&](const PmixLibrary& library) { return library.Log(data, ndata, directives, ndirs); });
}

PMIX_EXPORT pmix_status_t PMIx_Log_nb(const pmix_info_t data[], size_t ndata, const pmix_info_t directives[],
                                      size_t ndirs, pmix_op_cbfunc_t callback, void* cbdata) {
  return foreign_nb("PMIx_Log_nb", on_operation, callback, cbdata, [&](const PmixLibrary& library, auto f, void* d) {
    return library.Log_nb(data, ndata, directives, ndirs, f, d);
  });
}
}
