// A master over a simulated device, and workers that a test plays by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libraries/masterworker/master_link.h"
#include "libraries/masterworker/tests/wires.h"

namespace shadowib::masterworker {

class WiredMaster : public ::testing::Test {
 protected:
  void SetUp() override { make(); }
  void make(std::uint64_t most_lag_bytes = kMostLagBytes, std::uint32_t ahead = 1, std::uint64_t keep_bytes = 0) {
    link.reset();
    wires.reset();
    link = std::make_unique<MasterLink>(most_lag_bytes);
    master = std::make_unique<Master>(*link, ahead);
    link->attach(*master);
    master->keep_updates(keep_bytes);
    Callbacks callbacks;
    callbacks.generate = [this]() -> std::optional<Payload> {
      if (tasks.empty()) return std::nullopt;
      Payload next = std::move(tasks.front());
      tasks.pop_front();
      return next;
    };
    callbacks.check = [this](const Payload&, const Payload& output) {
      checked.emplace_back(static_cast<const char*>(output.data()), output.size());
      if (actions.empty()) return Action{};
      Action next = std::move(actions.front());
      actions.pop_front();
      return next;
    };
    master->begin(std::move(callbacks));
  }

  static Payload bytes(std::size_t size, char fill) { return text(std::string(size, fill)); }
  static Payload text(const std::string& words) { return Payload::copy(words.data(), words.size()); }

  // A worker is forked and says hello. Returns the token that it knows itself by.
  std::uint64_t born(int wait_s = 0) {
    const std::uint64_t token = ++next_token;
    link->expect(token, wait_s);
    return token;
  }
  // It is answered, and not ready yet. Returns the queue pair that the master has for it.
  std::uint32_t greet(std::uint64_t token) {
    Hello hello;
    hello.token = token;
    hello.life = link->door().life;
    hello.updates = master->updates().count();
    hello.phase = master->phase();
    wires.hello(hello);
    go_on();
    EXPECT_EQ(wires.answers.back().answer, Answer::kWelcome);
    return wires.answers.back().connection.queue_pair;
  }
  std::uint32_t join(std::uint64_t token) {
    const std::uint32_t queue_pair = greet(token);
    say(queue_pair, Kind::kReady);
    go_on();
    return queue_pair;
  }
  std::uint32_t worker() { return join(born()); }
  // One that is no fork says hello, and has run no update. Returns how it is answered.
  Answer come_from_elsewhere(std::uint64_t token) {
    Hello hello;
    hello.token = token;
    hello.life = link->door().life;
    hello.elsewhere = 1;
    wires.hello(hello);
    go_on();
    return wires.answers.back().answer;
  }

  void say(std::uint32_t queue_pair, Kind kind, std::uint64_t number = 0, const std::string& body = {}) {
    Header header;
    header.kind = kind;
    header.number = number;
    header.life = link->door().life;
    header.output_bytes = body.size();
    wires.message(queue_pair, header, body);
  }
  // A result that lies in the worker's memory, here `output`.
  void say_large(std::uint32_t queue_pair, std::uint64_t handout, const std::string& output) {
    Header header;
    header.kind = Kind::kResult;
    header.number = handout;
    header.life = link->door().life;
    header.output_bytes = output.size();
    header.address = reinterpret_cast<std::uint64_t>(output.data());
    wires.message(queue_pair, header);
    go_on();
  }
  // The master takes what has arrived, and does what there is to do.
  void go_on() {
    while (link->progress() || master->step(now_ns())) {
    }
  }
  // The worker takes the next message.
  Header take(std::uint32_t queue_pair) {
    Header header;  // of no kind: a READ, or a sign of life
    if (wires.posted(queue_pair).empty()) {
      ADD_FAILURE() << "nothing was sent";
      return header;
    }
    const Posted message = wires.complete(queue_pair);
    if (message.opcode == IBV_WR_SEND) std::memcpy(&header, message.bytes.data(), sizeof(header));
    go_on();
    return header;
  }
  // The next task, behind whatever comes before.
  Header take_task(std::uint32_t queue_pair) {
    for (;;) {
      const bool empty = wires.posted(queue_pair).empty();
      const Header header = take(queue_pair);
      if (empty || header.kind == Kind::kTask) return header;
    }
  }
  // The worker reads a large message where it lies.
  static std::string read(const Header& header) {
    return {reinterpret_cast<const char*>(header.address), header.input_bytes + header.output_bytes};
  }
  void tick() { link->tick(now_ns(), 0); }

  Wires& wires = Wires::get();
  std::unique_ptr<MasterLink> link;
  std::unique_ptr<Master> master;
  std::deque<Payload> tasks;
  std::deque<Action> actions;
  std::vector<std::string> checked;
  std::uint64_t next_token = 0;
};

}  // namespace shadowib::masterworker
