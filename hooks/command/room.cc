#include "hooks/command/room.h"

#include <algorithm>
#include <utility>

#include "hooks/raw/room.h"

namespace shadowib {
namespace {

// A file system that is full serves nobody.
std::uint64_t usable(std::uint64_t free) { return free / 20 * 19; }

constexpr double kMargin = 1.1;

}  // namespace

double expected_part(const StoreRates& rates, Compression compression) {
  const double part = compression == Compression::kLz4    ? rates.lz4
                      : compression == Compression::kZstd ? rates.zstd
                                                          : 0;
  return part > 0 ? std::min(1.0, kMargin * part) : 1;
}

StoreQuestion describe_room(const StoreChoice& choice, const std::string& directory,
                            const std::vector<MemberStatus>& members, const std::map<std::uint32_t, Fields>& rooms,
                            const NearHosts& hosts, double part) {
  StoreQuestion question{.central_bytes = usable(free_space(directory.c_str())),
                         .rates = choice.rates,
                         .survive = choice.survive,
                         .newest = choice.newest};
  std::map<std::string, HostRoom> by_host;
  for (const MemberStatus& member : members) {
    const Fields& fields = rooms.at(member.index);
    const std::string& id = hosts.host_of.at(member.index);
    HostRoom& room =
        by_host.try_emplace(id, HostRoom{id, hosts.domains.at(id), member.host, 0, ~0ull, ~0ull}).first->second;
    room.image_bytes += static_cast<std::uint64_t>(part * static_cast<double>(field_number(fields, "bytes")));
    room.mem_bytes = std::min(room.mem_bytes, usable(field_number(fields, "mem")));
    room.disk_bytes = std::min(room.disk_bytes, usable(field_number(fields, "disk")));
  }
  for (auto& [id, room] : by_host) question.hosts.push_back(std::move(room));
  return question;
}

// Members of one host may be in groups with limits of their own. Each group has to do for its members, and the host
// for all of them.
std::vector<std::uint32_t> members_that_stand(const std::map<std::uint32_t, SaverNeed>& needs) {
  struct Room {
    std::uint64_t bytes = 0, free = 0;
    bool is_enough() const { return free > kSpareMemory && bytes < free - kSpareMemory; }
  };
  std::map<std::string, Room> hosts;
  std::map<std::pair<std::string, std::string>, Room> groups;
  for (const auto& [member, need] : needs) {
    Room& host = hosts[need.host];
    host.bytes += need.bytes;
    host.free = std::max(host.free, need.free);
    Room& group = groups.try_emplace({need.host, need.group}, Room{0, ~0ull}).first->second;
    group.bytes += need.bytes;
    group.free = std::min(group.free, need.free);
  }
  std::vector<std::uint32_t> standing;
  for (const auto& [member, need] : needs)
    if (!hosts[need.host].is_enough() || !groups[{need.host, need.group}].is_enough()) standing.push_back(member);
  return standing;
}

}  // namespace shadowib
