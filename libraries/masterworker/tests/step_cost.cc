// What a null task of 64 bytes costs a master or a worker, for callgrind: farm_step() is all that a master does from
// a result to the next task on its way, worker_step() all from a task to its result on its way, over a simulated
// device (wires.h). Usage: mw_step_cost WORKERS TASKS, or for a worker: mw_step_cost worker TASKS
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "libraries/masterworker/master_link.h"
#include "libraries/masterworker/tests/wires.h"
#include "libraries/masterworker/worker_link.h"

using namespace shadowib::masterworker;

extern "C" __attribute__((noinline)) void farm_step(MasterLink& link, Master& master) {
  while (link.progress() || master.step(link.looked_ns())) {
  }
}

static inline bool one_task(WorkerLink& link) {
  Message message;
  if (!link.next(&message, nullptr)) return false;
  link.send_result(message.header.number, Payload::copy(message.task, message.header.input_bytes));
  return true;
}
extern "C" __attribute__((noinline)) bool worker_step(WorkerLink& link) { return one_task(link); }

// The job's exchange: nobody shows anything.
extern "C" int shadowib_lookup(const char*, void*, size_t, int) { return -ENOENT; }

namespace {

constexpr int kWarm = 2000;

int work(int tasks) {
  Wires& wires = Wires::get();
  wires.on_hello = [&wires](const Hello& hello) {
    Welcome welcome;
    welcome.token = hello.token;
    welcome.answer = Answer::kWelcome;
    wires.welcome(welcome);
  };
  BirthFacts facts;
  facts.token = 17;
  facts.elsewhere = true;
  WorkerLink link(facts);
  constexpr std::uint32_t kConnection = 2;
  wires.complete(kConnection);
  const std::string bytes(64, 'a');
  Header header;
  header.kind = Kind::kTask;
  header.input_bytes = bytes.size();
  for (int i = 0; i < kWarm + tasks; ++i) {
    header.number = static_cast<std::uint64_t>(i);
    wires.message(kConnection, header, bytes);
    if (!(i < kWarm ? one_task(link) : worker_step(link))) return 1;
    Header result;
    std::memcpy(&result, wires.complete(kConnection).bytes.data(), sizeof(result));
    if (result.number != header.number) return 1;
  }
  std::printf("%d results\n", kWarm + tasks);
  return 0;
}

int lead(int workers, int tasks) {
  Wires& wires = Wires::get();
  MasterLink link;
  Master master(link, 1);
  link.attach(master);
  long checked = 0;
  const std::string bytes(64, 'a');
  Callbacks callbacks;
  callbacks.generate = [&bytes]() -> std::optional<Payload> { return Payload::copy(bytes.data(), bytes.size()); };
  callbacks.check = [&checked](const Payload&, const Payload&) {
    ++checked;
    return Action{};
  };
  master.begin(std::move(callbacks));
  const auto go_on = [&] {
    while (link.progress() || master.step(now_ns())) {
    }
  };
  std::vector<std::uint32_t> queue_pairs;
  Header header;
  header.life = link.door().life;
  for (int i = 1; i <= workers; ++i) {
    Hello hello;
    hello.token = static_cast<std::uint64_t>(i);
    hello.life = link.door().life;
    hello.phase = master.phase();
    link.expect(hello.token);
    wires.hello(hello);
    go_on();
    queue_pairs.push_back(wires.answers.back().connection.queue_pair);
    header.kind = Kind::kReady;
    wires.message(queue_pairs.back(), header);
    go_on();
  }
  for (int i = 0; i < kWarm + tasks; ++i) {
    const std::uint32_t queue_pair = queue_pairs[static_cast<std::size_t>(i % workers)];
    Header task;
    std::memcpy(&task, wires.complete(queue_pair).bytes.data(), sizeof(task));
    header.kind = Kind::kResult;
    header.number = task.number;
    header.output_bytes = bytes.size();
    wires.message(queue_pair, header, bytes);
    if (i < kWarm)
      go_on();
    else
      farm_step(link, master);
  }
  std::printf("%ld results\n", checked);
  return checked == kWarm + tasks ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int tasks = std::atoi(argv[2]);
  return std::strcmp(argv[1], "worker") == 0 ? work(tasks) : lead(std::atoi(argv[1]), tasks);
}
