// Messages between the ranks of a namespace after a restart, in the exchange. Keys, below the epoch:
//   launcher/<namespace>/puts/<rank>         what the rank has put and committed (stored_value.h)
//   launcher/<namespace>/fence/<set>/<rank>  how many fences of that set of ranks it has come to in its life
//   launcher/<namespace>/done/<rank>         it has taken leave of the launcher
//   launcher/<namespace>/member/<index>      the rank that this member of the job is
//   launcher/<namespace>/event/<rank>.<n>    the n-th event of its life that the rank has told others of
//   launcher/<namespace>/events/<rank>       the number of its latest; of those before it kEventsKept are there
//   control/event                            changes with each event, so that agents look
//   control/abort                            a rank has asked for the end of some, or all
// where a namespace stands as 16 hex digits of its hash, and a set by its name (fence_set()).
//
// A fence is over for a rank when all of its set have come to as many as that rank. The count is of the process's
// life, so that it does not matter who had heard of a fence's end before the restart and who had not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/launcher/stored_value.h"
#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// "all", or a hash of those ranks, which are sorted first.
std::string fence_set(std::vector<std::uint32_t>* ranks, std::uint32_t namespace_size);
// A set of ranks of several namespaces (MPI_Comm_spawn). All of them get one name.
using RanksByNamespace = std::map<std::string, std::vector<std::uint32_t>>;
std::string fence_set(RanksByNamespace* ranks);

struct AbortRequest {
  std::uint32_t from = 0;
  int status = 0;
  std::string message;
  std::vector<std::uint32_t> ranks;  // none: all
};
std::string encode_abort(const std::string& name, const AbortRequest& request);
bool decode_abort(const std::string& text, std::string* name, AbortRequest* request);  // false: malformed
std::string abort_key(const std::string& epoch);

// An event that a rank tells others of, as PMIx_Notify_event has it.
struct LauncherEvent {
  std::int32_t status = 0;
  std::uint8_t range = 0;  // pmix_data_range_t
  std::string source;      // of whom it is told: the namespace,
  std::uint32_t rank = 0;  // and the rank
  std::string host;        // where it was told: this_host()
  std::uint32_t ninfo = 0;
  std::string info;  // that many, as PMIx packs them
};
std::string encode_event(const LauncherEvent& event);
bool decode_event(const std::string& text, LauncherEvent* event);  // false: malformed

struct EventName {
  std::uint32_t rank = 0;    // who has told it
  std::uint64_t number = 0;  // of those that it has told in its life, from 1
};

class Board {
 public:
  static constexpr std::uint64_t kEventsKept = 256;  // of each rank

  Board(Exchange* exchange, const std::string& epoch, const std::string& name);

  Status publish_puts(std::uint32_t rank, const StoredValues& puts);
  enum class Answer { kFound, kNotPut, kNotCommitted };
  Status find_put(std::uint32_t rank, const std::string& key, Answer* answer, StoredValue* value);
  // Where a key is one for the whole namespace: by the lowest rank that has put it.
  Status find_put_of_any(std::uint32_t size, const std::string& key, bool* found, StoredValue* value);

  Status publish_fence(const std::string& set, std::uint32_t rank, std::uint64_t count);
  // Takes out of `missing` the ranks that have come to their fence number `count`, or have left.
  Status look_for(const std::string& set, std::uint64_t count, std::vector<std::uint32_t>* missing);

  Status publish_done(std::uint32_t rank);
  Status list_done(std::vector<std::uint32_t>* ranks);

  Status publish_member(std::uint32_t member, std::uint32_t rank);
  Status find_member(std::uint32_t member, std::uint32_t* rank, bool* found);

  // Those of a rank one after the other, by their numbers. Not ok: nobody hears of it, or who looks by chance.
  Status publish_event(const EventName& name, const LauncherEvent& event);
  // A word that changes with each event; empty if there was no event.
  Status event_mark(std::string* mark);
  // The number of each rank's latest; 0: it has told of none.
  Status latest_events(std::uint32_t size, std::vector<std::uint64_t>* latest);
  // Not found: it has gone meanwhile.
  Status find_event(const EventName& name, LauncherEvent* event, bool* found);

  // Removes what the rank has told, but its first `events_told` events: it goes back to before that.
  Status forget(std::uint32_t rank, std::uint64_t events_told);

  static std::string namespace_key(const std::string& name);

 private:
  std::string key(const std::string& rest) const { return root_ + rest; }
  Exchange* exchange_;
  std::string event_mark_, root_;
};

}  // namespace shadowib
