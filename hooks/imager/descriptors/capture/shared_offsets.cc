// Files of several members, by the open file description behind them.
#include <charconv>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/raw/proc.h"

namespace shadowib {
namespace descriptors {
namespace {

// A line "c GROUP PID FD MEMBER OBJECT" of the command's.
struct Candidate {
  std::uint32_t group = 0, pid = 0, fd = 0, member = 0, object = 0;
};

bool parse(std::string_view line, Candidate* candidate) {
  if (!line.starts_with("c ")) return false;
  const char* at = line.data() + 1;
  for (std::uint32_t* number :
       {&candidate->group, &candidate->pid, &candidate->fd, &candidate->member, &candidate->object}) {
    if (at == line.data() + line.size() || *at != ' ') return false;
    const auto [end, error] = std::from_chars(at + 1, line.data() + line.size(), *number);
    if (error != std::errc()) return false;
    at = end;
  }
  return at == line.data() + line.size();
}

std::vector<Candidate> parse_candidates(const std::string& duty) {
  std::vector<Candidate> candidates;
  for (std::size_t at = 0, end; (end = duty.find('\n', at)) != std::string::npos; at = end + 1)
    if (Candidate candidate; parse(std::string_view(duty).substr(at, end - at), &candidate))
      candidates.push_back(candidate);
  return candidates;
}

// The descriptions of one group, ascending as kcmp orders them.
class Descriptions {
 public:
  // The number of the candidate's description, which begins at `next` if it is a new one. -1: the kernel does not
  // tell.
  int number_of(const Candidate& candidate, std::uint32_t next) {
    std::size_t low = 0, high = known_.size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      const Candidate& other = known_[middle].first;
      const int order = compare_descriptions(static_cast<int>(other.pid), static_cast<int>(other.fd),
                                             static_cast<int>(candidate.pid), static_cast<int>(candidate.fd));
      if (order < 0) return -1;
      if (order == kSameDescription) return static_cast<int>(known_[middle].second);
      (order == kLessDescription ? low : high) = order == kLessDescription ? middle + 1 : middle;
    }
    known_.insert(known_.begin() + static_cast<long>(high), {candidate, next});
    return static_cast<int>(next);
  }

 private:
  std::vector<std::pair<Candidate, std::uint32_t>> known_;
};

}  // namespace
}  // namespace descriptors

Status compare_files(const std::string& duty, std::string* encoded) {
  using namespace descriptors;
  const std::vector<Candidate> candidates = parse_candidates(duty);
  if (candidates.empty()) return {};
  Table table;
  SHADOWIB_TRY(decode_table(*encoded, &table));
  std::uint32_t next = 0;
  for (std::size_t at = 0; at < candidates.size();) {
    const std::uint32_t group = candidates[at].group;
    const std::size_t kept = table.shared_files.size();
    Descriptions descriptions;
    bool told = true;
    for (; at < candidates.size() && candidates[at].group == group; ++at) {
      const Candidate& c = candidates[at];
      const int number = told ? descriptions.number_of(c, next) : -1;
      told = number >= 0;
      if (!told) continue;
      if (static_cast<std::uint32_t>(number) == next) ++next;
      table.shared_files.push_back({c.member, c.object, static_cast<std::uint32_t>(number)});
    }
    if (!told) table.shared_files.resize(kept);  // one that has ended, or a filter: all or none of a group
  }
  encode_table(table, encoded);
  return {};
}

}  // namespace shadowib
