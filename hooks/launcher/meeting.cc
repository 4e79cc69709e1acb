#include "hooks/launcher/meeting.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "hooks/threads/stop.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

// Open MPI's: in the environment of ranks that are to connect to the one that spawns them.
constexpr char kParentPort[] = "OMPI_PARENT_PORT";

struct SpawnMeeting {
  std::string port;
  bool root = false;
};
struct Meetings {
  std::vector<SpawnMeeting> now;
};

SpinLock g_meetings_lock;  // held inside
std::atomic<std::size_t> g_count{0};
std::atomic<bool> g_was_spawned{false};

// Calls change(meetings).
template <typename Change>
void with_meetings(Change change) {
  Inside inside;
  SpinGuard guard(g_meetings_lock);
  std::vector<SpawnMeeting>& now = Lasting<Meetings>::get().now;
  change(now);
  g_count.store(now.size());
}

void end(std::vector<SpawnMeeting>& meetings, auto is_over) {
  meetings.erase(std::remove_if(meetings.begin(), meetings.end(), is_over), meetings.end());
}

std::string_view text_of(const pmix_key_t& key) { return {key, ::strnlen(key, sizeof(key))}; }

// The port of a key under which a root tells who it is; empty: it is another key.
std::string_view told_port(std::string_view key) {
  for (const std::string_view side : {":connect", ":accept"})
    if (key.ends_with(side)) return key.substr(0, key.size() - side.size());
  return {};
}

bool is_of(std::string_view key, const SpawnMeeting& meeting, std::string_view rest) {
  return key.starts_with(meeting.port) && key.substr(meeting.port.size()).starts_with(rest);
}

void begin(std::string_view port, bool root) {
  with_meetings([&](std::vector<SpawnMeeting>& now) {
    const auto known = std::find_if(now.begin(), now.end(), [&](const SpawnMeeting& m) { return m.port == port; });
    if (known == now.end())
      now.push_back({std::string(port), root});
    else
      known->root = known->root || root;
  });
}

}  // namespace

void begin_meeting_if_spawned() {
  const char* port = std::getenv(kParentPort);
  if (port != nullptr && !g_was_spawned.exchange(true)) begin(port, false);
}

const char* port_of(const pmix_app_t apps[], std::size_t napps) {
  constexpr std::size_t length = sizeof(kParentPort) - 1;
  for (std::size_t i = 0; apps != nullptr && i < napps; ++i)
    for (char* const* v = apps[i].env; v != nullptr && *v != nullptr; ++v)
      if (std::strncmp(*v, kParentPort, length) == 0 && (*v)[length] == '=') return *v + length + 1;
  return nullptr;
}

void begin_meeting(const char* port) { begin(port, false); }

void note_published(const pmix_info_t info[], std::size_t ninfo) {
  for (std::size_t i = 0; info != nullptr && i < ninfo; ++i)
    if (const std::string_view port = told_port(text_of(info[i].key)); !port.empty()) begin(port, true);
}

void note_unpublished(char** keys) {
  for (; g_count.load() != 0 && keys != nullptr && *keys != nullptr; ++keys)
    if (const std::string_view port = told_port(*keys); !port.empty())
      with_meetings([port](std::vector<SpawnMeeting>& now) {
        end(now, [port](const SpawnMeeting& m) { return m.port == port; });
      });
}

void note_lookup(const pmix_pdata_t data[], std::size_t ndata, pmix_status_t status) {
  for (std::size_t i = 0; g_count.load() != 0 && data != nullptr && i < ndata; ++i) {
    const std::string_view key = text_of(data[i].key);
    with_meetings([&](std::vector<SpawnMeeting>& now) {
      end(now, [&](const SpawnMeeting& m) { return is_of(key, m, status == PMIX_SUCCESS ? ":activate:" : ":"); });
    });
  }
}

void note_connected(pmix_status_t status) {
  if (g_count.load() == 0) return;
  with_meetings([status](std::vector<SpawnMeeting>& now) {
    end(now, [status](const SpawnMeeting& m) { return !m.root || status != PMIX_SUCCESS; });
  });
}

void forget_meetings() {
  if (g_count.load() != 0) with_meetings([](std::vector<SpawnMeeting>& now) { now.clear(); });
}

bool is_meeting() { return g_count.load() != 0; }

}  // namespace shadowib
