// How a process ends that learns of another one's end by a word.
#include "libraries/bsp/mesh.h"

#include <gtest/gtest.h>

#include <csignal>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/fake_verbs.h"

namespace shadowib::bsp {
namespace {

// Process 0 of three waits for words, and gets this one.
void wait_for_word(std::uint32_t immediate) {
  fake_processes = 3;
  Mesh mesh(0, 3, kFakeEpoch, 1000);
  mesh.connect();
  ibv_wc completion{};
  completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  completion.imm_data = immediate;
  fake_completions.push_back(completion);
  mesh.begin_barrier();
  mesh.wait_barrier();
}

std::uint32_t told(Mesh::End end) {
  fake_processes = 3;
  fake_told.clear();
  Mesh mesh(0, 3, kFakeEpoch, 1000);
  mesh.connect();
  mesh.tell(end);
  EXPECT_EQ(fake_told.size(), 2u) << "one for each peer";
  return fake_told.at(0);
}

void send_words(Mesh* mesh, std::uint64_t superstep) {
  static Word word;
  word.superstep = superstep;
  for (int peer : {1, 2}) mesh->send_word(peer, word, {}, 0);
}

TEST(Mesh, APeerIsAskedForItsSuperstepOnceOrNotAtAll) {
  fake_processes = 3;
  fake_reads = 0;
  Mesh mesh(0, 3, kFakeEpoch, 1000);
  mesh.connect();
  mesh.begin_barrier();
  send_words(&mesh, 0);
  mesh.wait_barrier();
  mesh.begin_superstep(1);
  mesh.await_superstep(1);
  EXPECT_EQ(fake_reads, 1u);
  mesh.await_superstep(1);
  EXPECT_EQ(fake_reads, 1u) << "again in the same superstep";
  mesh.await_superstep(2);
  EXPECT_EQ(fake_reads, 2u) << "another peer";
  mesh.begin_barrier();
  send_words(&mesh, 1);
  mesh.wait_barrier();
  mesh.begin_superstep(2);
  send_words(&mesh, 2);  // the peers are early
  mesh.await_superstep(1);
  EXPECT_EQ(fake_reads, 2u) << "its word has come already";
}

TEST(Mesh, ProcessesThatAreToldOfAnAbortExitWithItsCode) {
  const std::uint32_t word = told(Mesh::End::kAbort);  // what a child expects, nobody counts
  EXPECT_EXIT(wait_for_word(word), testing::ExitedWithCode(kAbortedExit), "");
}

// To a supervisor an orderly exit is a result: all processes of a job that has lost one end by a signal, those that
// have not noticed it themselves, too.
TEST(Mesh, ProcessesThatAreToldOfALossEndByASignal) {
  const std::uint32_t word = told(Mesh::End::kLost);
  EXPECT_EXIT(wait_for_word(word), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace shadowib::bsp
