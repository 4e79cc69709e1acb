#include "hooks/imager/descriptors/capture/sharing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/description_order.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

constexpr std::size_t kMany = 64;

std::vector<int>* g_sorted = nullptr;  // one number of each description

// A list of numbers, one of each description, ascending as kcmp orders them.
class Order {
 public:
  // Where `fd` belongs. *same: that number shares its description. False: the kernel does not compare.
  bool find(int fd, std::size_t* place, bool* same) const {
    return find_in_order(
        list_, [fd](int other) { return compare_descriptions(other, fd); }, place, same);
  }
  void insert(std::size_t place, int fd) { list_.insert(list_.begin() + static_cast<long>(place), fd); }

  std::vector<int>& list() { return list_; }

 private:
  std::vector<int> list_;
};

// Numbers of g_sorted that are still in order go to `order`, and all others to `rest`. shares[fd] >= 0: with that.
bool check_order(const std::vector<int>& fds, Order* order, std::vector<int>* rest, std::vector<int>* shares) {
  std::vector<bool> listed(shares->size(), false), open(shares->size(), false);
  for (const int fd : fds) open[static_cast<std::size_t>(fd)] = true;
  std::vector<int>& chain = order->list();
  chain.reserve(fds.size());
  for (const int fd : *g_sorted) {
    const auto at = static_cast<std::size_t>(fd);
    if (at >= open.size() || !open[at] || listed[at]) continue;
    listed[at] = true;
    const int now = chain.empty() ? kLessDescription : compare_descriptions(chain.back(), fd);
    if (now < 0) return false;
    if (now == kSameDescription) {
      (*shares)[at] = chain.back();
    } else if (now == kLessDescription) {
      chain.push_back(fd);
    } else if (chain.size() == 1 || compare_descriptions(chain[chain.size() - 2], fd) == kLessDescription) {
      rest->push_back(chain.back());  // the last one is out of order, or this one
      chain.back() = fd;
    } else {
      rest->push_back(fd);
    }
  }
  for (const int fd : fds)
    if (!listed[static_cast<std::size_t>(fd)]) rest->push_back(fd);
  return true;
}

bool share_offset(int a, int b) {
  off_t before = ::lseek(a, 0, SEEK_CUR), other = ::lseek(b, 0, SEEK_CUR);
  if (before < 0 || before != other || ::lseek(a, before + 1, SEEK_SET) < 0) return false;
  bool shared = ::lseek(b, 0, SEEK_CUR) == before + 1;
  ::lseek(a, before, SEEK_SET);
  return shared;
}

}  // namespace

Sharing::Sharing(const std::vector<int>& fds) : fds_(fds) {
  if (fds.empty()) return;
  const auto numbers = static_cast<std::size_t>(fds.back()) + 1;
  std::vector<int> shares(numbers, -1), rest;
  Order order;
  if (g_sorted == nullptr || g_sorted->empty())
    rest = fds;
  else if (!check_order(fds, &order, &rest, &shares))
    return;
  for (const int fd : rest) {
    std::size_t place = 0;
    bool same = false;
    if (!order.find(fd, &place, &same)) return;
    if (same)
      shares[static_cast<std::size_t>(fd)] = order.list()[place];
    else
      order.insert(place, fd);
  }
  std::vector<std::uint32_t> group_of(numbers);
  for (std::size_t i = 0; i < order.list().size(); ++i)
    group_of[static_cast<std::size_t>(order.list()[i])] = static_cast<std::uint32_t>(i);
  for (const int fd : fds) {
    // What a number shares with may have been found to share with another since.
    auto at = static_cast<std::size_t>(fd);
    while (shares[at] >= 0) at = static_cast<std::size_t>(shares[at]);
    groups_.push_back(group_of[at]);
  }
  objects_.assign(order.list().size(), -1);
}

int Sharing::find_or_add(std::size_t i, const Object& object, const std::vector<Object>& objects,
                         std::uint32_t next) {
  if (groups_.empty()) return find_without_kcmp(fds_[i], object, objects, next);
  int& known = objects_[groups_[i]];
  const int found = known;
  if (known < 0) known = static_cast<int>(next);
  return found;
}

// Where a filter denies kcmp: a socket is one description; a file shares its offset, so move it and look.
int Sharing::find_without_kcmp(int fd, const Object& object, const std::vector<Object>& objects, std::uint32_t next) {
  for (const Seen& seen : seen_) {
    const Object& other = objects[seen.object];
    if (other.inode != object.inode || other.device != object.device || other.flags != object.flags) continue;
    if (S_ISSOCK(object.mode) || S_ISFIFO(object.mode) || S_ISCHR(object.mode)) return static_cast<int>(seen.object);
    if (S_ISREG(object.mode) && share_offset(fd, seen.fd)) return static_cast<int>(seen.object);
  }
  seen_.push_back({fd, next});
  return -1;
}

void sort_descriptors() {
  forget_sorted_descriptors();
  std::vector<int> fds;
  if (!list_descriptors(&fds).ok() || fds.size() < kMany) return;
  Order order;
  for (const int fd : fds) {
    std::size_t place = 0;
    bool same = false;
    // The program may close it meanwhile; a filter may deny kcmp, and then nothing gets in.
    if (order.find(fd, &place, &same) && !same) order.insert(place, fd);
  }
  if (g_sorted == nullptr) g_sorted = new std::vector<int>;
  *g_sorted = std::move(order.list());
}

void forget_sorted_descriptors() {
  if (g_sorted != nullptr) g_sorted->clear();
}

}  // namespace shadowib::descriptors
