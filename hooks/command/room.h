// Room for images, as members tell of it, for the choice of a store. Internal to hooks/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/command/coordinator.h"
#include "hooks/command/copies.h"
#include "hooks/job/protocol.h"

namespace shadowib {

// The part of its memory that a member's image is expected to take: by the job's newest set of that compression, and
// a tenth more. 1: none is known, or `compression` is kNone.
double expected_part(const StoreRates& rates, Compression compression);
// Without any record. Real programs take 0.4 to 0.6; a set that turns out to be larger goes to another store.
inline constexpr double kUsualPart = 0.7;

// `rooms` has the words of every one of `members`: near/<index> (protocol.h). Images may take 95% of free
// space, and take `part` of the memory.
StoreQuestion describe_room(const StoreChoice& choice, const std::string& directory,
                            const std::vector<MemberStatus>& members, const std::map<std::uint32_t, Fields>& rooms,
                            const NearHosts& hosts, double part);

// Memory of its host that a member may take which goes on while its image is written.
struct SaverNeed {
  std::string host;
  std::uint64_t bytes = 0, free = 0;  // `free`: of its host, or less where its memory group has less
  std::string group = {};             // of its host, that has less; "": none
};
// Members that are to stand: the free memory of their host, or of their group, is too little for all of it together.
std::vector<std::uint32_t> members_that_stand(const std::map<std::uint32_t, SaverNeed>& needs);

}  // namespace shadowib
