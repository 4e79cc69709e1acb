// bsp_storm: random supersteps by a seed, and a ledger of every byte.
//
//   bsprun -n P bsp_storm SEED SUPERSTEPS [FILE]
// Process 0 prints a line at the end. A wrong byte aborts the job and is named. FILE: each process writes its
// superstep to FILE.<process> now and then, so that a test can wait for progress; supersteps end when FILE.stop
// exists.
#include <bsp.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "libraries/bsp/storm/ledger.h"

namespace bsp_storm {
namespace {

class Process {
 public:
  Process(std::uint64_t seed, const char* progress)
      : seed_(seed),
        processes_(static_cast<int>(bsp_nprocs())),
        self_(static_cast<int>(bsp_pid())),
        ledger_(processes_),
        area_(kWords),
        fetched_(kWords),
        at_once_(2 * kAtOnce * processes_) {
    if (progress != nullptr) progress_ = std::string(progress) + "." + std::to_string(self_);
    bsp_push_reg(area_.data(), 4 * kWords);
    bsp_push_reg(at_once_.data(), 4 * at_once_.size());
    bsp_push_reg(&end_, sizeof(end_));
    bsp_sync();
  }

  // False once FILE.stop exists, in all processes at once.
  bool superstep(std::uint64_t number) {
    const Plan plan = plan_superstep(seed_, number, processes_);
    kept_.clear();
    for (const Operation& op : plan.operations)
      if (op.from == self_) call(op);
    operations_ += plan.operations.size();
    const int old_tag = tag_bytes_;
    if (plan.tag_bytes >= 0) set_tag(plan.tag_bytes);
    if (plan.registers_anew) {
      bsp_pop_reg(area_.data());
      bsp_push_reg(area_.data(), 4 * kWords);
    }
    if (!progress_.empty() && self_ == 0) tell_end();
    bsp_sync();
    ledger_.run(plan, number);
    compare(number);
    read_messages(number, plan.reads[self_], old_tag);
    if (!progress_.empty() && number % 16 == 0) tell(number);
    return end_ == 0;
  }

  std::uint64_t operations() const { return operations_; }

 private:
  void call(const Operation& op) {
    std::vector<std::uint32_t> data(op.words);
    for (std::size_t i = 0; i < op.words; ++i) data[i] = word_of(op.id, i);
    const auto to = static_cast<unsigned>(op.to);
    switch (op.kind) {
      case Operation::Kind::kPut:
        bsp_put(to, data.data(), area_.data(), 4 * op.offset, 4 * op.words);
        break;
      case Operation::Kind::kPutAtOnce:
        bsp_hpput(to, data.data(), at_once_.data(), 4 * op.offset, 4 * op.words);
        kept_.push_back(std::move(data));
        return;
      case Operation::Kind::kGet:
        bsp_get(to, area_.data(), 4 * op.offset, fetched_.data() + op.target, 4 * op.words);
        break;
      case Operation::Kind::kSend:
        bsp_send(to, &op.id, data.data(), 4 * op.words);
        break;
    }
    std::memset(data.data(), 0xee, 4 * data.size());  // it was copied
  }

  void tell_end() {
    const std::string stop = progress_.substr(0, progress_.rfind('.')) + ".stop";
    const int end = ::access(stop.c_str(), F_OK) == 0;
    for (int to = 0; to < processes_; ++to) bsp_put(static_cast<unsigned>(to), &end, &end_, 0, sizeof(end));
  }

  void set_tag(int bytes) {
    std::size_t size = static_cast<std::size_t>(bytes);
    bsp_set_tagsize(&size);
    if (static_cast<int>(size) != tag_bytes_) bsp_abort("bsp_set_tagsize told %zu instead of %d", size, tag_bytes_);
    tag_bytes_ = bytes;
  }

  void compare(std::uint64_t number) const {
    compare(number, "area", area_.data(), ledger_.area(self_).data(), kWords);
    compare(number, "fetched", fetched_.data(), ledger_.fetched(self_).data(), kWords);
    for (int from = 0; from < processes_; ++from)
      compare(number, "written at once", &at_once_[(2 * from + (number & 1)) * kAtOnce],
              ledger_.at_once(self_, from, number & 1), kAtOnce);
  }

  static void compare(std::uint64_t number, const char* what, const std::uint32_t* is, const std::uint32_t* must,
                      std::size_t words) {
    if (std::memcmp(is, must, 4 * words) == 0) return;
    std::size_t at = 0;
    while (is[at] == must[at]) ++at;
    bsp_abort("superstep %llu: %s: word %zu is %08x instead of %08x", static_cast<unsigned long long>(number), what,
              at, is[at], must[at]);
  }

  // Some stay, and are gone after the next sync.
  void read_messages(std::uint64_t number, std::size_t reads, int tag_bytes) {
    const std::vector<Message>& queue = ledger_.queue(self_);
    std::size_t bytes = 0, left = 0;
    for (const Message& message : queue) left += 4 * message.words;
    unsigned count = 0;
    bsp_qsize(&count, &bytes);
    if (count != queue.size() || bytes != left)
      bsp_abort("superstep %llu: %u messages with %zu bytes instead of %zu with %zu",
                static_cast<unsigned long long>(number), count, bytes, queue.size(), left);
    for (std::size_t i = 0; i < reads && i < queue.size(); ++i) {
      std::uint64_t tag = 0;
      std::size_t size = 0;
      std::vector<std::uint32_t> data(kMessageWords);
      const std::uint32_t* payload = data.data();
      if (i % 2 == 0) {
        bsp_get_tag(&size, &tag);
        bsp_move(data.data(), 4 * data.size());
      } else {
        void *tag_at, *payload_at;
        size = bsp_hpmove(&tag_at, &payload_at);
        std::memcpy(&tag, tag_at, static_cast<std::size_t>(tag_bytes));
        payload = static_cast<const std::uint32_t*>(payload_at);
      }
      if (size != 4 * queue[i].words || std::memcmp(&tag, &queue[i].id, static_cast<std::size_t>(tag_bytes)) != 0)
        bsp_abort("superstep %llu: message %zu is another", static_cast<unsigned long long>(number), i);
      for (std::size_t w = 0; w < queue[i].words; ++w)
        if (payload[w] != word_of(queue[i].id, w))
          bsp_abort("superstep %llu: message %zu: word %zu is wrong", static_cast<unsigned long long>(number), i, w);
    }
  }

  void tell(std::uint64_t number) const {
    const std::string next = progress_ + ".new";
    std::FILE* file = std::fopen(next.c_str(), "w");
    if (file == nullptr) return;
    std::fprintf(file, "%llu\n", static_cast<unsigned long long>(number));
    std::fclose(file);
    std::rename(next.c_str(), progress_.c_str());
  }

  const std::uint64_t seed_;
  const int processes_, self_;
  Ledger ledger_;
  std::vector<std::uint32_t> area_, fetched_, at_once_;
  std::vector<std::vector<std::uint32_t>> kept_;  // sources of puts at once, until the sync
  int tag_bytes_ = 0, end_ = 0;
  std::uint64_t operations_ = 0;
  std::string progress_;
};

}  // namespace
}  // namespace bsp_storm

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bsprun -n P bsp_storm SEED SUPERSTEPS [FILE]\n");
    return 2;
  }
  const std::uint64_t seed = std::strtoull(argv[1], nullptr, 0), supersteps = std::strtoull(argv[2], nullptr, 0);
  bsp_begin(bsp_nprocs());
  bsp_storm::Process process(seed, argc > 3 ? argv[3] : nullptr);
  std::uint64_t done = 0;
  while (done < supersteps && process.superstep(done)) ++done;
  if (bsp_pid() == 0)
    std::printf("storm: seed %llu, %u processes, %llu supersteps, %llu operations: exact\n",
                static_cast<unsigned long long>(seed), bsp_nprocs(), static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(process.operations()));
  bsp_end();
  return 0;
}
