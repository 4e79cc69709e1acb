#include "hooks/launcher/meeting.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "hooks/launcher/rank.h"

namespace shadowib {
namespace {

// Open MPI's: in the environment of ranks that are to connect to the one that spawns them.
constexpr char kParentPort[] = "OMPI_PARENT_PORT";

bool names_parent(const char* variable) {
  constexpr std::size_t length = sizeof(kParentPort) - 1;
  return std::strncmp(variable, kParentPort, length) == 0 && variable[length] == '=';
}

// One of the two keys under which the roots tell and look.
template <typename Item>
bool names_side(const Item items[], std::size_t count) {
  for (std::size_t i = 0; items != nullptr && i < count; ++i) {
    const std::string_view key(items[i].key, ::strnlen(items[i].key, sizeof(items[i].key)));
    if (key.ends_with(":connect") || key.ends_with(":accept")) return true;
  }
  return false;
}

}  // namespace

void begin_meeting_if_spawned() {
  if (std::getenv(kParentPort) != nullptr) begin_meeting();
}

bool will_meet(const pmix_app_t apps[], std::size_t napps) {
  for (std::size_t i = 0; apps != nullptr && i < napps; ++i)
    for (char* const* v = apps[i].env; v != nullptr && *v != nullptr; ++v)
      if (names_parent(*v)) return true;
  return false;
}

void begin_meeting() { launcher_rank().meets.store(true); }

void begin_meeting_if_told(const pmix_info_t info[], std::size_t ninfo) {
  if (names_side(info, ninfo)) begin_meeting();
}

void end_meeting_if_sought(const pmix_pdata_t data[], std::size_t ndata) {
  if (names_side(data, ndata)) end_meeting();
}

void end_meeting() { launcher_rank().meets.store(false); }

}  // namespace shadowib
