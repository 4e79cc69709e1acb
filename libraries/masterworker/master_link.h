// The master's end of the wire: first contact, connections, pings. A Courier over verbs, for one thread.
//
// Buffers are of one size for any number of workers (M14): kReceives slots in a shared receive queue, kSends slots
// for messages on their way. Nobody writes into the master's memory; a worker's large results are read.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libraries/masterworker/adapter.h"
#include "libraries/masterworker/master.h"
#include "libraries/masterworker/outbox.h"
#include "libraries/masterworker/protocol.h"

namespace shadowib::masterworker {

// A worker must know this to say hello. A fork has it in its memory; others look it up by kDoorName.
inline constexpr char kDoorName[] = "mw.door";
struct Door {
  Place place;
  std::uint32_t key = 0;  // random Q_Key
  std::uint64_t life = 0;
};

class MasterLink : public Courier {
 public:
  static constexpr int kReceives = 1024, kSends = 512, kHellos = 64;

  explicit MasterLink(std::uint64_t most_lag_bytes = kMostLagBytes);
  ~MasterLink() override;
  void attach(Master& master) { master_ = &master; }

  const Door& door() const { return door_; }
  // A worker with this token is being forked, with the master's updates of now. It sleeps `wait_s` first.
  void expect(std::uint64_t token, int wait_s = 0);
  // It is this process now. If that ends before it has joined, tick() no longer waits for it.
  void born(std::uint64_t token, pid_t process);
  // It will not come.
  void unexpect(std::uint64_t token);
  // Forks that have not said hello yet.
  std::size_t unheard() const;
  std::size_t connected() const { return connections_.size(); }
  // Those that are forks.
  std::size_t connected_forks() const { return connections_.size() - elsewhere_; }
  std::uint32_t free_rank() const;
  // Registered for good; buffers for large messages come and go.
  std::uint64_t buffer_bytes() const { return receives_.bytes + sends_.bytes + hellos_.bytes + more_bytes_; }

  // Handles what has arrived. True if there was something.
  bool progress();
  // When that was, the last time there was something: in tick_ns(), as all of a master's times. A task's duration is
  // right in the mean, and what is slow takes longer than many ticks.
  std::int64_t looked_ns() const { return looked_ns_; }
  // Call every kPingMs, or more often. First handles what has arrived, so that nobody is judged by what lay unread.
  // Asks workers with tasks for a sign of life; gives up births that take too long, workers that are silent for
  // `timeout_s` (0: never) with a task.
  static constexpr int kPingMs = 250;
  void tick(std::int64_t now, int timeout_s);
  void sleep(int timeout_ms);
  // This is a restarted process: connections lead nowhere, and a new life begins.
  void restarted();
  // Waits until all messages are sent, the last phase's end above all: for a second at most, as some may take
  // nothing.
  void finish();
  // How many forks have left by SIGTERM since the last call.
  std::size_t farewells() { return std::exchange(farewells_, 0); }
  // Tells people of workers that are lost or leave.
  void tell(bool tells) { tells_ = tells; }

  void send_task(WorkerId to, const Handout& handout, std::uint64_t generation, const Payload& input) override;
  void send_update(WorkerId to, std::uint64_t number, const Payload& input, const Payload& output) override;
  void send_end(WorkerId to, std::uint64_t phase) override;
  void abort_all(WorkerId to, std::uint64_t generation) override;
  void abort_one(WorkerId to, std::uint64_t handout) override;
  bool answers(WorkerId worker) override;
  std::int64_t time_ns() override { return tick_ns(); }

 private:
  static constexpr std::uint32_t kDatagramBytes = 512;  // of hellos_
  static constexpr std::int64_t kBirthNs = 60'000'000'000;
  struct Connection {
    explicit Connection(std::uint64_t most_lag_bytes) : out(most_lag_bytes) {}
    WorkerId id = 0;
    ibv_qp* qp = nullptr;
    Hello hello;
    Welcome welcome;
    bool ready = false;
    bool joining = false;  // it gets what was before it
    bool ping_out = false;
    std::uint32_t ticks_silent = 0;  // of kPingMs, while that ping is out
    std::int64_t counted_ns = 0;     // when it was posted, or counted last
    std::int64_t heard_ns = 0;
    std::uint32_t inline_bytes = 0;      // messages up to this length go inline
    std::uint32_t in_flight = 0;         // messages
    std::uint32_t unasked = 0;           // of these the last ones, which ask for no completion
    std::uint32_t slots = 0;             // that messages in flight hold
    std::uint32_t reads = 0, words = 0;  // READs and aborts on their way
    std::deque<Header> unread;           // large results that wait for a READ
    Outbox out;
    std::multimap<std::uint32_t, std::uint64_t> lent;  // buffers that the worker may read -> bytes
  };
  struct Slot {
    std::uint64_t serial = 0;
    WorkerId to = 0;
    std::uint64_t bytes = 0;   // told to the outbox when sent; large ones when read
    std::uint32_t length = 0;  // of what the slot holds
    std::uint32_t ends = 0;    // so many messages are sent when it is
  };
  struct Reading {
    WorkerId from = 0;
    Header header;
    std::uint32_t buffer = 0;
  };
  struct Birth {
    std::uint64_t updates = 0;
    std::int64_t until_ns = 0;  // then it will not come
    bool elsewhere = false;     // no fork
    std::int64_t began_ns = 0;  // of a fork
    pid_t process = 0;          // 0: not known, or on another host
  };

  // First contact: master_door.cc.
  void open_door();
  void close_door();
  void post_hello(std::uint32_t index);
  void received_hello(const ibv_wc& wc, std::uint32_t index);
  void heard_hello(std::uint32_t index);
  void answer(const Hello& hello, const Welcome& welcome);
  // Whether the worker may come. If so it is expected from now on.
  Answer judge(const Hello& hello);
  Connection* admit(const Hello& hello);
  // Whether its process has ended, so that it will not join.
  static bool is_over(const Birth& birth, std::int64_t now);
  // Those that will not join, or take too long.
  void give_up_births(std::int64_t now);
  // One more has not joined. Tells people if nobody joins.
  void count_unborn();

  // Connections: master_link.cc.
  void completed(const ibv_wc& wc);
  void received(const ibv_wc& wc, std::uint32_t index);
  void handle(Connection& from, const Header& header, const char* body);
  void fetch(Connection& from, const Header& header);
  bool read(Connection& from, const Header& header);
  void fetched(std::uint64_t serial, bool good);
  void push(WorkerId to, Header header, const Payload& input, const Payload& output);
  void pump(Connection& to);
  bool has_room(const Connection& to, const Outgoing& message) const;
  bool post(Connection& to, const Outgoing& message);
  bool post_inline(Connection& to, const Outgoing& message);
  void sent(Connection& to, std::uint32_t messages);
  void write_word(WorkerId to, std::size_t offset, std::uint64_t value);
  void lost(WorkerId worker, bool told = false);
  void forget(Connection& connection);
  Buffer& buffer_of(const Outgoing& message);
  void put(std::uint32_t buffer);
  static void clear(const Buffer& slots, std::uint32_t index, std::size_t slot_bytes, std::size_t used);
  void release(std::uint32_t index);
  void pump_waiting(WorkerId after);
  void return_receive(std::uint32_t index);
  Connection* find(WorkerId id);

  Adapter adapter_;
  Master* master_ = nullptr;
  Door door_;
  ibv_srq* shared_ = nullptr;
  ibv_qp* datagrams_ = nullptr;
  Buffer receives_, sends_, hellos_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<ibv_ah*> routes_;  // of answers, by slot in hellos_
  Emptied emptied_;              // slots of receives_
  std::int64_t looked_ns_ = 0;
  std::uint64_t serial_ = 0;
  WorkerId next_id_ = 0;
  std::map<WorkerId, std::unique_ptr<Connection>> connections_;  // in order, for turns
  std::unordered_map<WorkerId, Connection*> by_id_;              // the same: the way to one is as long with many
  std::unordered_map<std::uint32_t, Connection*> by_queue_pair_;
  std::unordered_map<std::uint64_t, WorkerId> by_token_;
  std::map<std::uint64_t, Birth> births_;
  std::map<std::uint64_t, Reading> readings_;
  std::map<std::uint64_t, std::uint32_t> large_updates_;  // number -> buffer, while workers read it
  std::uint64_t next_answer_ = 0;
  std::size_t farewells_ = 0;
  std::size_t elsewhere_ = 0;  // connections to workers that are no forks
  bool tells_ = false;
  std::uint32_t unborn_ = 0;  // in a row
  std::uint64_t more_bytes_ = 0;
  const std::uint64_t most_lag_bytes_;
};

}  // namespace shadowib::masterworker
