// Files of several members, by the open file description behind them.
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/description_order.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/raw/proc.h"

namespace shadowib {
namespace descriptors {
namespace {

// As many numbers as `numbers` has, each after a blank.
bool parse_numbers(std::string_view line, std::initializer_list<std::uint32_t*> numbers) {
  const char *at = line.data(), *const end = at + line.size();
  for (std::uint32_t* number : numbers) {
    if (at == end || *at != ' ') return false;
    const auto [behind, error] = std::from_chars(at + 1, end, *number);
    if (error != std::errc()) return false;
    at = behind;
  }
  return at == end;
}

// A line "c GROUP PID FD MEMBER OBJECT" of the command's.
struct Candidate {
  std::uint32_t group = 0, pid = 0, fd = 0, member = 0, object = 0;
};

std::vector<Candidate> parse_candidates(const std::string& duty) {
  std::vector<Candidate> candidates;
  for (std::size_t at = 0, end; (end = duty.find('\n', at)) != std::string::npos; at = end + 1)
    if (Candidate c; duty[at] == 'c' && parse_numbers(std::string_view(duty).substr(at + 1, end - at - 1),
                                                      {&c.group, &c.pid, &c.fd, &c.member, &c.object}))
      candidates.push_back(c);
  return candidates;
}

// The descriptions of one group, ascending as kcmp orders them.
class Descriptions {
 public:
  // The number of the candidate's description, which begins at `next` if it is a new one. -1: the kernel does not
  // tell.
  int number_of(const Candidate& candidate, std::uint32_t next) {
    std::size_t place = 0;
    bool same = false;
    const auto compare = [&candidate](const Known& other) {
      return compare_descriptions(static_cast<int>(other.first.pid), static_cast<int>(other.first.fd),
                                  static_cast<int>(candidate.pid), static_cast<int>(candidate.fd));
    };
    if (!find_in_order(known_, compare, &place, &same)) return -1;
    if (!same) known_.insert(known_.begin() + static_cast<long>(place), {candidate, next});
    return static_cast<int>(known_[place].second);
  }

 private:
  using Known = std::pair<Candidate, std::uint32_t>;
  std::vector<Known> known_;
};

}  // namespace
}  // namespace descriptors

std::string compare_files(const std::string& duty) {
  using namespace descriptors;
  const std::vector<Candidate> candidates = parse_candidates(duty);
  std::string found;
  std::uint32_t next = 0;
  for (std::size_t at = 0; at < candidates.size();) {
    const std::uint32_t group = candidates[at].group;
    const std::size_t kept = found.size();
    Descriptions descriptions;
    bool told = true;
    for (; at < candidates.size() && candidates[at].group == group; ++at) {
      const Candidate& c = candidates[at];
      const int number = told ? descriptions.number_of(c, next) : -1;
      told = number >= 0;
      if (!told) continue;
      if (static_cast<std::uint32_t>(number) == next) ++next;
      for (const std::uint32_t n : {c.member, c.object, static_cast<std::uint32_t>(number)})
        found += " " + std::to_string(n);
      found += ";";
    }
    if (!told) found.resize(kept);  // one that has ended, or a filter: all or none of a group
  }
  return found;
}

Status add_comparisons(const std::string& found, std::string* encoded) {
  using namespace descriptors;
  if (found.empty()) return {};
  Table table;
  SHADOWIB_TRY(decode_table(*encoded, &table));
  for (std::size_t at = 0, end; (end = found.find(';', at)) != std::string::npos; at = end + 1)
    if (SharedFile f;
        parse_numbers(std::string_view(found).substr(at, end - at), {&f.member, &f.object, &f.description}))
      table.shared_files.push_back(f);
  encode_table(table, encoded);
  return {};
}

}  // namespace shadowib
