#include "hooks/launcher/events.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "hooks/job/current_job.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/pmix_library.h"
#include "hooks/launcher/rank.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

constexpr std::size_t kFirstNumber = std::size_t{1}
                                     << 30;  // the library counts from 0; and an int, for who asks at once

struct EventHandler {
  std::size_t number = 0;
  std::vector<pmix_status_t> codes;  // none: all
  pmix_notification_fn_t function = nullptr;
  char name[PMIX_MAX_KEYLEN + 1] = {};
  void* object = nullptr;  // of the program's, to be handed to it with each event
  bool once = false;
};

SpinLock g_lock;  // held inside
struct Events {
  std::deque<LauncherEvent> unheard;
  std::vector<EventHandler> handlers;
};
struct CurrentEvents {
  Events* at = new Events;
};
Events& events() SHADOWIB_REQUIRES(g_lock) { return *Lasting<CurrentEvents>::get().at; }

bool is_key(const pmix_info_t& info, const char* key) { return std::strncmp(info.key, key, sizeof(info.key)) == 0; }

// Infos as bytes, by PMIx, which knows all of its types; and back, by the program's malloc.
pmix_status_t pack(const PmixLibrary& library, const pmix_info_t* info, std::size_t ninfo,
                   pmix_data_buffer_t* buffer) {
  *buffer = {};
  if (ninfo == 0) return PMIX_SUCCESS;
  if (library.Data_pack == nullptr || ninfo > UINT32_MAX) return PMIX_ERR_NOT_SUPPORTED;
  return library.Data_pack(nullptr, buffer, const_cast<pmix_info_t*>(info), static_cast<std::int32_t>(ninfo),
                           PMIX_INFO);
}

// Room for two more behind them. Null: they cannot be told.
pmix_info_t* unpack(const PmixLibrary& library, const LauncherEvent& event) {
  auto* const info = static_cast<pmix_info_t*>(std::calloc(std::size_t{event.ninfo} + 2, sizeof(pmix_info_t)));
  if (info == nullptr || event.ninfo == 0) return info;
  pmix_data_buffer_t buffer{};
  buffer.base_ptr = static_cast<char*>(std::malloc(event.info.size() + 1));
  pmix_status_t status = PMIX_ERR_NOMEM;
  auto count = static_cast<std::int32_t>(event.ninfo);
  if (buffer.base_ptr != nullptr && library.Data_unpack != nullptr) {
    std::memcpy(buffer.base_ptr, event.info.data(), event.info.size());
    buffer.unpack_ptr = buffer.base_ptr;
    buffer.pack_ptr = buffer.base_ptr + event.info.size();
    buffer.bytes_allocated = buffer.bytes_used = event.info.size();
    status = library.Data_unpack(nullptr, &buffer, info, &count, PMIX_INFO);
  }
  std::free(buffer.base_ptr);
  if (status == PMIX_SUCCESS && count == static_cast<std::int32_t>(event.ninfo)) return info;
  log_line(LogLevel::kWarn, "event %d of rank %u is dropped: what comes with it cannot be unpacked (%d)",
           event.status, event.rank, status);
  std::free(info);
  return nullptr;
}

void free_infos(const PmixLibrary& library, pmix_info_t* info, std::size_t ninfo) {
  if (library.Value_destruct != nullptr)
    for (std::size_t i = 0; i < ninfo; ++i) library.Value_destruct(&info[i].value);
  std::free(info);
}

// Whether a range of processes, as an info has it, has this one in it.
bool names_us(const pmix_info_t& info) {
  const LauncherRank& own = launcher_rank();
  const auto is_us = [&](const pmix_proc_t& proc) {
    return std::string_view(proc.nspace) == own.name && (proc.rank == own.rank || proc.rank == PMIX_RANK_WILDCARD);
  };
  if (info.value.type == PMIX_PROC) return info.value.data.proc != nullptr && is_us(*info.value.data.proc);
  const pmix_data_array_t* const array = info.value.type == PMIX_DATA_ARRAY ? info.value.data.darray : nullptr;
  if (array == nullptr || array->type != PMIX_PROC) return false;
  const auto* const procs = static_cast<const pmix_proc_t*>(array->array);
  return std::any_of(procs, procs + array->size, is_us);
}

// Handlers of ours that an event goes to, one after the other: each says when it has done.
struct Chain {
  pmix_status_t status;
  pmix_proc_t source;
  pmix_info_t* info;
  std::size_t ninfo;
  std::vector<std::size_t> handlers;  // that are to come, the next one last
  char name[PMIX_MAX_KEYLEN + 1];     // of the one that is being told
};

// As PMIx has it: first those for this code alone, then those for several, then those for all.
std::vector<std::size_t> handlers_for(const Chain& chain) {
  bool default_too = true;
  for (std::size_t i = 0; i < chain.ninfo; ++i) {
    if (is_key(chain.info[i], PMIX_EVENT_CUSTOM_RANGE) && !names_us(chain.info[i])) return {};
    if (is_key(chain.info[i], PMIX_EVENT_NON_DEFAULT))
      default_too = chain.info[i].value.type == PMIX_BOOL && !chain.info[i].value.data.flag;
  }
  std::vector<std::size_t> found[3];
  SpinGuard guard(g_lock);
  for (const EventHandler& h : events().handlers) {
    if (h.codes.empty() ? default_too : std::find(h.codes.begin(), h.codes.end(), chain.status) != h.codes.end())
      found[h.codes.empty() ? 2 : h.codes.size() == 1 ? 0 : 1].push_back(h.number);
  }
  for (int kind : {1, 2}) found[0].insert(found[0].end(), found[kind].begin(), found[kind].end());
  std::reverse(found[0].begin(), found[0].end());
  return found[0];
}

void erase_handler(std::size_t number) SHADOWIB_REQUIRES(g_lock) {
  std::erase_if(events().handlers, [&](const EventHandler& h) { return h.number == number; });
}

struct Called {
  std::size_t number = 0;
  pmix_notification_fn_t function = nullptr;  // null: none is left
  void* object = nullptr;
};

// The next of the chain that is still registered.
Called next_handler(Chain* chain) {
  Inside inside;
  Called called;
  SpinGuard guard(g_lock);
  while (called.function == nullptr && !chain->handlers.empty()) {
    const std::size_t number = chain->handlers.back();
    chain->handlers.pop_back();
    for (const EventHandler& h : events().handlers) {
      if (h.number != number) continue;
      called = {number, h.function, h.object};
      std::memcpy(chain->name, h.name, sizeof(chain->name));
      if (h.once) {
        erase_handler(number);
        break;
      }
    }
  }
  return called;
}

void end_chain(Chain* chain) {
  free_infos(*pmix_library(), chain->info, chain->ninfo);
  Inside inside;
  delete chain;
}

void on_handled(pmix_status_t status, pmix_info_t* results, std::size_t nresults, pmix_op_cbfunc_t callback,
                void* data, void* chain);

void tell_next(Chain* chain) {
  const Called called = next_handler(chain);
  if (called.function == nullptr) return end_chain(chain);
  std::size_t count = chain->ninfo;
  const auto add = [&](const char* key, pmix_data_type_t type) -> pmix_value_t& {
    pmix_info_t& info = chain->info[count++];
    info = {};
    std::strncpy(info.key, key, sizeof(info.key) - 1);
    info.value.type = type;
    return info.value;
  };
  if (chain->name[0] != '\0') add(PMIX_EVENT_HDLR_NAME, PMIX_STRING).data.string = chain->name;
  if (called.object != nullptr) add(PMIX_EVENT_RETURN_OBJECT, PMIX_POINTER).data.ptr = called.object;
  called.function(called.number, chain->status, &chain->source, chain->info, count, nullptr, 0, on_handled, chain);
}

// Called by the handler, when it has done, in whatever thread.
void on_handled(pmix_status_t status, pmix_info_t*, std::size_t, pmix_op_cbfunc_t callback, void* data, void* chain) {
  if (callback != nullptr) callback(PMIX_SUCCESS, data);
  auto* const at = static_cast<Chain*>(chain);
  if (status == PMIX_EVENT_ACTION_COMPLETE)
    end_chain(at);
  else
    tell_next(at);
}

Chain* begin_chain(const LauncherEvent& event, const pmix_proc_t& source, pmix_info_t* info) {
  Inside inside;
  auto* const chain = new Chain{event.status, source, info, event.ninfo, {}, {}};
  chain->handlers = handlers_for(*chain);
  return chain;
}

void hear(const LauncherEvent& event) {
  const PmixLibrary& library = *pmix_library();
  pmix_info_t* const info = unpack(library, event);
  if (info == nullptr) return;
  pmix_proc_t source{};
  std::strncpy(source.nspace, event.source.c_str(), sizeof(source.nspace) - 1);
  source.rank = event.rank;
  if (library.Notify_event != nullptr)
    library.Notify_event(event.status, &source, PMIX_RANGE_PROC_LOCAL, info, event.ninfo, nullptr, nullptr);
  tell_next(begin_chain(event, source, info));
}

void forget(LauncherEvent* event) {
  Inside inside;
  delete event;
}

// In the library's thread, in which it tells of all events, and no list of its handlers changes meanwhile.
void hear_in_library(pmix_status_t, pmix_value_t*, void* event) {
  {
    Inside inside;
    note_library_thread();
  }
  auto* const heard = static_cast<LauncherEvent*>(event);
  if (launcher_rank().connected.load()) hear(*heard);
  forget(heard);
}

// Other ranks may be meant, of this host or of all.
bool leaves_process(pmix_data_range_t range) { return range != PMIX_RANGE_PROC_LOCAL && range != PMIX_RANGE_RM; }

void let_hear(LauncherEvent event) {
  {
    SpinGuard guard(g_lock);
    events().unheard.push_back(std::move(event));
  }
  wake_answering();
}

// False: it wants to hear of some processes' events alone, which is not told here.
bool take_directive(const pmix_info_t& info, EventHandler* handler) {
  if (is_key(info, PMIX_EVENT_HDLR_NAME)) {
    if (info.value.type == PMIX_STRING && info.value.data.string != nullptr)
      std::strncpy(handler->name, info.value.data.string, sizeof(handler->name) - 1);
  } else if (is_key(info, PMIX_EVENT_RETURN_OBJECT)) {
    handler->object = info.value.data.ptr;
  } else if (is_key(info, PMIX_EVENT_ONESHOT)) {
    handler->once = info.value.type == PMIX_UNDEF || info.value.data.flag;
  } else {
    for (const char* some :
         {PMIX_EVENT_AFFECTED_PROC, PMIX_EVENT_AFFECTED_PROCS, PMIX_EVENT_CUSTOM_RANGE, PMIX_RANGE})
      if (is_key(info, some)) return false;
  }
  return true;
}

// PMIx has the newest in front, unless it is told otherwise.
bool comes_last(const pmix_info_t* info, std::size_t ninfo) {
  for (const char* key : {PMIX_EVENT_HDLR_LAST, PMIX_EVENT_HDLR_LAST_IN_CATEGORY, PMIX_EVENT_HDLR_APPEND})
    if (is_asked_for(info, ninfo, key)) return true;
  return false;
}

}  // namespace

pmix_status_t tell_event(pmix_status_t status, const pmix_proc_t* source, pmix_data_range_t range,
                         const pmix_info_t* info, std::size_t ninfo) {
  pmix_data_buffer_t packed;
  const pmix_status_t rc = pack(*pmix_library(), info, ninfo, &packed);
  if (rc != PMIX_SUCCESS) return rc;
  Status told;
  {
    Inside inside;
    LauncherRank& own = launcher_rank();
    LauncherEvent event{status, range, own.name, own.rank, this_host(), static_cast<std::uint32_t>(ninfo), {}};
    if (ninfo > 0) event.info.assign(packed.base_ptr, packed.bytes_used);
    if (leaves_process(range)) {
      SpinGuard guard(own.telling);
      told = Board(job_exchange(), job_info().epoch, own.name).publish_event({own.rank, ++own.events_told}, event);
      if (!told.ok())
        log_line(LogLevel::kError, "rank %u cannot tell of event %d: %s", own.rank, status, told.text());
    }
    if (source != nullptr) {
      event.source = source->nspace;
      event.rank = source->rank;
    }
    if (told.ok() && range != PMIX_RANGE_RM) let_hear(std::move(event));
  }
  std::free(packed.base_ptr);
  return told.ok() ? PMIX_SUCCESS : PMIX_ERR_COMM_FAILURE;
}

bool hear_event() {
  LauncherEvent* event = nullptr;
  {
    Inside inside;
    SpinGuard guard(g_lock);
    if (events().unheard.empty()) return false;
    event = new LauncherEvent(std::move(events().unheard.front()));
    events().unheard.pop_front();
  }
  // What the library answers of its own knowledge it answers in its thread.
  const PmixLibrary& library = *pmix_library();
  if (library.Get_nb == nullptr ||
      library.Get_nb(nullptr, PMIX_PROCID, nullptr, 0, hear_in_library, event) != PMIX_SUCCESS)
    forget(event);  // it has been finalized
  return true;
}

Status take_events(Exchange* exchange, const std::string& epoch) {
  LauncherRank& own = launcher_rank();
  if (!own.gone.load() || !own.connected.load()) return {};
  Board board(exchange, epoch, own.name);
  std::string mark;
  SHADOWIB_TRY(board.event_mark(&mark));
  if (mark.empty() || mark == own.events_mark) return {};
  std::vector<std::uint64_t> latest;
  SHADOWIB_TRY(board.latest_events(own.size, &latest));
  for (EventName name; name.rank < own.size; ++name.rank) {
    std::uint64_t& seen = own.events_seen[name.rank];
    if (name.rank == own.rank) continue;
    const std::uint64_t newest = latest[name.rank];
    if (newest > seen + Board::kEventsKept && seen != 0)
      log_line(LogLevel::kWarn, "%llu events of rank %u have come and gone before this rank could hear of them",
               static_cast<unsigned long long>(newest - seen - Board::kEventsKept), name.rank);
    const std::uint64_t oldest = newest > Board::kEventsKept ? newest - Board::kEventsKept + 1 : 1;
    while (seen < newest) {
      name.number = std::max(seen + 1, oldest);
      LauncherEvent event;
      bool found = false;
      const Status status = board.find_event(name, &event, &found);
      if (!status.ok() && status.code() != Code::kCorrupt) return status;
      if (!status.ok()) log_line(LogLevel::kWarn, "%s", status.text());
      seen = name.number;
      if (status.ok() && found && (event.range != PMIX_RANGE_LOCAL || event.host == this_host()))
        let_hear(std::move(event));
    }
  }
  own.events_mark = std::move(mark);
  return {};
}

pmix_status_t add_event_handler(const pmix_status_t* codes, std::size_t ncodes, const pmix_info_t* info,
                                std::size_t ninfo, pmix_notification_fn_t handler, std::size_t* number) {
  Inside inside;
  EventHandler made;
  made.function = handler;
  if (codes != nullptr) made.codes.assign(codes, codes + ncodes);
  for (std::size_t i = 0; i < ninfo; ++i) {
    if (take_directive(info[i], &made)) continue;
    log_line(LogLevel::kWarn, "an event handler for some processes alone (%.60s) cannot be had without a launcher",
             info[i].key);
    return PMIX_ERR_NOT_SUPPORTED;
  }
  *number = made.number = new_handler_number();
  SpinGuard guard(g_lock);
  std::vector<EventHandler>& handlers = events().handlers;
  handlers.insert(comes_last(info, ninfo) ? handlers.end() : handlers.begin(), std::move(made));
  return PMIX_SUCCESS;
}

bool is_own_handler(std::size_t number) { return number >= kFirstNumber; }

void remove_event_handler(std::size_t number) {
  Inside inside;
  SpinGuard guard(g_lock);
  erase_handler(number);
}

std::size_t new_handler_number() {
  Inside inside;
  LauncherRank& own = launcher_rank();
  SpinGuard guard(own.lock);
  return kFirstNumber + own.handlers++;
}

void forget_events() {
  SpinGuard guard(g_lock);
  events().unheard.clear();
  events().handlers.clear();
}

// As they may be half changed, they are left where they are.
void reset_events_after_fork() {
  g_lock.reset();
  Lasting<CurrentEvents>::get().at = new Events;
}

}  // namespace shadowib
