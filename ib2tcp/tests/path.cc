// ib2tcp_path: one message at a time between two sides in one thread, for tools that count instructions.
//
// Each side has a backend of its own and drives it by its own calls only, so that every run does the same. The steps
// of a message are functions with names that callgrind can be told: step_receive, step_send, step_poll. With `border`
// the sides are two clusters, and requests are copied into the shim's log.
#include <infiniband/verbs.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/member.h"
#include "ib2tcp/testing/process.h"
#include "shadowib/objects/border_log.h"

namespace {

using shadowib::ib2tcp::testing::Device;
using shadowib::ib2tcp::testing::Endpoint;
using shadowib::ib2tcp::testing::FakeExchange;
using shadowib::ib2tcp::testing::Process;
using shadowib::ib2tcp::testing::ProcessOptions;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "ib2tcp_path: %s failed\n", what);
  std::exit(1);
}

// Each side's log of requests to the other one, by the shim's own code.
shadowib::BorderLogEntry* add_to_log(ibv_qp* qp, std::uint32_t number, std::uint32_t bytes) {
  constexpr std::size_t kLimit = std::size_t{256} << 20;
  static std::map<ibv_qp*, shadowib::BorderLog> logs;
  return logs[qp].add(number, bytes, kLimit);
}

}  // namespace

extern "C" {

__attribute__((noinline)) int step_receive(const Endpoint& end, ibv_recv_wr* wr) {
  ibv_recv_wr* bad = nullptr;
  return end.ops.post_recv(end.qp, wr, &bad);
}
__attribute__((noinline)) int step_send(const Endpoint& end, ibv_send_wr* wr) {
  ibv_send_wr* bad = nullptr;
  return end.ops.post_send(end.qp, wr, &bad);
}
__attribute__((noinline)) int step_poll(const Endpoint& end, ibv_wc* wc) { return end.ops.poll_cq(end.cq, 4, wc); }

}  // extern "C"

namespace {

// One transfer: `from` sends, `to` polls once and finds the message and, if `to` has sent before, its completion.
void transfer(const Endpoint& from, const Endpoint& to, std::uint32_t bytes, bool is_inline, int expected) {
  ibv_sge target = to.sge(0, bytes), source = from.sge(4096, bytes);
  ibv_recv_wr receive{1, nullptr, &target, 1};
  require(step_receive(to, &receive) == 0, "post_recv");
  ibv_send_wr send{};
  send.wr_id = 2;
  send.sg_list = &source;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  if (is_inline) send.send_flags = IBV_SEND_INLINE;
  require(step_send(from, &send) == 0, "post_send");
  ibv_wc wc[4];
  require(step_poll(to, wc) == expected, "finding the completions with one poll");
  for (int i = 0; i < expected; ++i) require(wc[i].status == IBV_WC_SUCCESS, "a request");
}

}  // namespace

int main(int argc, char** argv) {
  const long bytes = argc > 1 ? std::atol(argv[1]) : 64, iterations = argc > 2 ? std::atol(argv[2]) : 1000;
  bool is_inline = false, in_cluster = false, at_border = false, is_known = true;
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    is_inline |= word == "inline";
    in_cluster |= word == "cluster";
    at_border |= word == "border";
    is_known &= word == "inline" || word == "cluster" || word == "border";
  }
  if (!is_known || bytes < 1 || bytes > 4096 || iterations < 1 || (is_inline && bytes > 64)) {
    std::fprintf(stderr, "usage: ib2tcp_path [BYTES [ITERATIONS [inline] [cluster|border]]]\n");
    return 2;
  }
  auto exchange = std::make_shared<FakeExchange>();
  ProcessOptions options;
  options.transport = "shm";
  options.helper = false;
  options.traces = false;
  options.log_add = add_to_log;
  Process first(exchange, options), second(exchange, options);
  for (Process* process : {&first, &second}) {
    shadowib::ClusterState state = shadowib::ib2tcp::testing::state_of(at_border && process == &second ? 1 : 0, 1);
    state.depends[1 - state.index] = 1;  // so that no message waits for a CLC
    require((!in_cluster && !at_border) || process->ops().set_cluster(&state) == 0, "set_cluster");
  }
  Device one(first), other(second);
  Endpoint a(one), b(other);
  shadowib::ib2tcp::testing::connect(a, b);
  for (int i = 0; i < 10000; ++i) {  // the connection
    first.ops().progress(0);
    second.ops().progress(0);
  }
  transfer(a, b, static_cast<std::uint32_t>(bytes), is_inline, 1);
  for (long i = 0; i < iterations; ++i) {
    transfer(b, a, static_cast<std::uint32_t>(bytes), is_inline, 2);
    transfer(a, b, static_cast<std::uint32_t>(bytes), is_inline, 2);
  }
  for (int i = 0; i < 100; ++i) {  // the last acknowledgement
    first.ops().progress(0);
    second.ops().progress(0);
  }
  ibv_wc wc[4];
  require(a.ops.poll_cq(a.cq, 4, wc) == 1, "the last completion");
  return 0;
}
