#include "hooks/federation/recovery_judge.h"

#include <algorithm>
#include <cerrno>

namespace shadowib::federation {
namespace {

constexpr std::int64_t kClocksDifferMs = 1000;  // at most, of hosts

constexpr char kNotAllLogged[] =
    "has newer connections, was read from, came back, or had a full log (SHADOWIB_LOG_BYTES)";
constexpr char kOtherHost[] = "has sent from another host, and clocks differ";
constexpr char kNotLast[] = "keeps only what is not in a later CLC of it";

bool contains(const std::vector<unsigned>& clusters, unsigned index) {
  return std::find(clusters.begin(), clusters.end(), index) != clusters.end();
}

// Whether all that has left for the cluster since its CLC is in a log that is whole since then: nanoseconds.
bool is_all_logged(const BackFacts& back, std::uint64_t since_ns) {
  const std::int64_t asked_ms = back.asked_ms - kClocksDifferMs;
  return asked_ms >= 0 && since_ns / 1'000'000 < static_cast<std::uint64_t>(asked_ms);
}

// Of all that send again to one cluster.
bool is_of_one_host(const std::string& host, std::string* first) {
  if (first->empty()) *first = host;
  return *first == host;
}

std::optional<std::uint64_t> logged_since(const MemberFacts& member, unsigned cluster) {
  return cluster < member.logged_since.size() ? member.logged_since[cluster] : std::nullopt;
}

class Judge {
 public:
  explicit Judge(const RecoveryFacts& facts) : facts_(facts) {}
  Status run() const;

 private:
  Status judge_ended(const BackFacts& back) const;
  Status judge_survivors(const BackFacts& back, unsigned stays, std::string* host) const;
  bool came_back_later(unsigned cluster, const BackFacts& back) const;
  Status judge_pair(const BackFacts& back, const BackFacts& other, std::string* host) const;
  bool are_wired(unsigned a, unsigned b) const {
    return !facts_.tells_wiring || facts_.wired.contains(std::minmax(a, b));
  }
  const char* name(unsigned cluster) const { return facts_.clusters[cluster].name.c_str(); }

  const RecoveryFacts& facts_;
};

// Whoever was connected to a member that does not come back would wait for it.
Status Judge::judge_ended(const BackFacts& back) const {
  for (const MemberFacts& member : facts_.members)
    if (member.cluster == back.cluster && member.gone &&
        std::none_of(back.members.begin(), back.members.end(),
                     [&](const auto& m) { return m.index == member.index; }))
      return Status::of(Code::kRefused, 0,
                        "cluster %.32s cannot go back to %.60s: %.90s has ended before, and whoever was connected to "
                        "it would wait for it; take the newest set of all (shadowib restart)",
                        name(back.cluster), back.set.c_str(), member.name.c_str());
  return {};
}

// By an earlier line. What had left before, for the other's CLC of then, is in no log of its own.
bool Judge::came_back_later(unsigned cluster, const BackFacts& back) const {
  return std::any_of(facts_.earlier.begin(), facts_.earlier.end(), [&](const EarlierLine& line) {
    return contains(line.back, cluster) && back.cluster < line.sns.clusters && back.sn < line.sns[back.cluster];
  });
}

// Members of a cluster that stays send again, from their logs, what the other one has had since its CLC. That has to
// be all of it, and one clock tells its order.
Status Judge::judge_survivors(const BackFacts& back, unsigned stays, std::string* host) const {
  const auto refused = [&](const MemberFacts& member, const char* why) {
    return Status::of(
        Code::kRefused, 0,
        "cluster %.32s cannot go back to %.50s: %.60s of cluster %.32s %.90s; take the newest set of all "
        "(shadowib restart)",
        name(back.cluster), back.set.c_str(), member.name.c_str(), name(stays), why);
  };
  const std::vector<ClcRecord>& own = facts_.clusters[back.cluster].clcs;
  const bool is_last = !own.empty() && own.back().sn == back.sn;
  for (const MemberFacts& member : facts_.members) {
    if (member.cluster != stays) continue;
    if (member.gone) return refused(member, "has ended, with what it had sent");
    const std::optional<std::uint64_t> since = logged_since(member, back.cluster);
    if (!since) return refused(member, "does not say what it has logged");
    if (*since == 0) continue;
    if (back.asked_ms == 0) return refused(member, "cannot tell whether it has logged since that set");
    const bool keeps = back.cluster < member.trimmed.size() ? member.trimmed[back.cluster] <= back.sn : is_last;
    if (!keeps || came_back_later(stays, back)) return refused(member, kNotLast);
    if (!is_all_logged(back, *since)) return refused(member, kNotAllLogged);
    if (!is_of_one_host(member.host, host)) return refused(member, kOtherHost);
  }
  return {};
}

// Both go back. Members of `other` send again, from the logs in their images, what `back` has had since its CLC.
Status Judge::judge_pair(const BackFacts& back, const BackFacts& other, std::string* host) const {
  const auto refused = [&](const char* why) {
    return Status::of(Code::kRefused, 0,
                      "cluster %.32s cannot go back to %.50s: cluster %.32s, which goes back to %.50s, %.90s; take "
                      "the newest set of all (shadowib restart)",
                      name(back.cluster), back.set.c_str(), name(other.cluster), other.set.c_str(), why);
  };
  const std::vector<std::uint64_t>& since = other.logged_since;
  if (back.cluster >= since.size() || back.asked_ms == 0) return refused("does not say what it had logged");
  if (since[back.cluster] == 0) return {};
  if (has_known_of(facts_, back, other)) return refused(kNotLast);
  if (came_back_later(other.cluster, back)) return refused(kNotLast);
  if (!is_all_logged(back, since[back.cluster])) return refused(kNotAllLogged);
  for (const BackFacts::Member& member : other.members)
    if (!is_of_one_host(member.host, host)) return refused(kOtherHost);
  return {};
}

Status Judge::run() const {
  for (const BackFacts& back : facts_.back) {
    if (!back.wired)
      return Status::of(Code::kRefused, EOPNOTSUPP,
                        "%.100s was made by a shadowib that did not record connections between clusters, so nobody "
                        "knows whether cluster %.32s may go back to it",
                        back.set.c_str(), name(back.cluster));
    std::string host;  // of those who send again
    for (unsigned other = 0; other < facts_.clusters.size(); ++other) {
      if (other == back.cluster) continue;
      const BackFacts* with = facts_.going_back(other);
      if (with != nullptr ? !were_wired(back, *with) : !are_wired(back.cluster, other)) continue;
      SHADOWIB_TRY(judge_ended(back));
      SHADOWIB_TRY(with != nullptr ? judge_pair(back, *with, &host) : judge_survivors(back, other, &host));
    }
  }
  return {};
}

}  // namespace

const BackFacts* RecoveryFacts::going_back(unsigned cluster) const {
  const auto at = std::find_if(back.begin(), back.end(), [cluster](const auto& b) { return b.cluster == cluster; });
  return at == back.end() ? nullptr : &*at;
}

bool were_wired(const BackFacts& a, const BackFacts& b) {
  return (a.wired && contains(*a.wired, b.cluster)) || (b.wired && contains(*b.wired, a.cluster));
}

bool has_known_of(const RecoveryFacts& facts, const BackFacts& back, const BackFacts& other) {
  if (back.cluster < other.trimmed.size()) return other.trimmed[back.cluster] > back.sn;
  for (const ClcRecord& record : facts.clusters[back.cluster].clcs)
    // A later one is behind the other's CLC if the interval between them has had messages from behind that.
    if (record.sn > back.sn)
      return other.cluster >= record.before.clusters || record.before[other.cluster] < other.sn;
  return false;
}

Status judge_recovery(const RecoveryFacts& facts) { return Judge(facts).run(); }

std::vector<std::uint32_t> list_replaying(const RecoveryFacts& facts) {
  std::set<std::uint32_t> replaying, earlier;
  std::set<unsigned> went_back;
  for (const BackFacts& back : facts.back) went_back.insert(back.cluster);
  for (const EarlierLine& line : facts.earlier) {
    earlier.insert(line.replaying.begin(), line.replaying.end());
    went_back.insert(line.back.begin(), line.back.end());
  }
  for (const MemberFacts& member : facts.members) {
    if (member.gone || !member.cluster || facts.going_back(*member.cluster) != nullptr) continue;
    const auto was_connected = [&](const BackFacts& back) {
      return logged_since(member, back.cluster).value_or(0) != 0;
    };
    if (earlier.contains(member.index) || std::any_of(facts.back.begin(), facts.back.end(), was_connected))
      replaying.insert(member.index);
  }
  for (const BackFacts& back : facts.back) {
    const auto was_connected = [&](unsigned other) {
      return other != back.cluster && other < back.logged_since.size() && back.logged_since[other] != 0;
    };
    if (std::any_of(went_back.begin(), went_back.end(), was_connected))
      for (const BackFacts::Member& member : back.members) replaying.insert(member.index);
  }
  return {replaying.begin(), replaying.end()};
}

}  // namespace shadowib::federation
