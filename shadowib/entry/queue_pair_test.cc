// A queue pair's log of changes, which one thread changes while another asks.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <thread>

#include "shadowib/abi/handlers.h"
#include "shadowib/cr/announce.h"
#include "shadowib/cr/fences.h"
#include "shadowib/cr/peers.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/entry/extended.h"
#include "shadowib/entry/quarantine.h"
#include "shadowib/objects/border.h"
#include "shadowib/objects/registry.h"

namespace {
thread_local bool t_watches_heap = false;
int g_unlocked = 0;  // changes of the log without the registry's lock
}  // namespace

void* operator new(std::size_t size) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  if (t_watches_heap && shadowib::registry().lock.lock_now()) {
    ++g_unlocked;
    shadowib::registry().lock.unlock();
  }
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace shadowib {

// Beside what is tested.
Status turn_address(ShadowQp&, ibv_qp_attr*, int) { return {}; }
void announce_late_qp(const ShadowQp&) {}
void withdraw_late_qp(const ShadowQp&) {}
void await_sending_again() {}
void rest_before_delete(void*, void (*)(void*)) {}
void close_handle(ShadowQp&) {}
bool may_spare(ShadowPd&, const ibv_qp_init_attr&) { return false; }

namespace {

class ChangedQueuePair : public testing::Test {
 protected:
  void SetUp() override {
    g_backend = {};
    g_backend.modify_qp = [](ibv_qp*, ibv_qp_attr*, int) { return 0; };
    g_backend.query_qp = [](ibv_qp*, ibv_qp_attr*, int, ibv_qp_init_attr*) { return 0; };
    qp_.context = context_.get();
    qp_.qp.qp_base.context = &context_->program();
    qp_.qp.qp_base.qp_type = IBV_QPT_RC;
    qp_.real = &real_;
    ASSERT_TRUE(qp_.send.create(4, 1, 16, false));
    ASSERT_TRUE(qp_.receive.create(4, 1, 0, true));
  }
  void cycle() {
    for (ibv_qp_state state : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      ibv_qp_attr attr{};
      attr.qp_state = state;
      attr.dest_qp_num = 78;
      EXPECT_EQ(shadowib_ibv_modify_qp(&qp_.qp.qp_base, &attr,
                                       IBV_QP_STATE | (state == IBV_QPS_RTR ? IBV_QP_DEST_QPN : 0)),
                0);
    }
  }
  std::unique_ptr<ShadowContext> context_ = std::make_unique<ShadowContext>();
  ibv_qp real_{};
  ShadowQp qp_;
};

TEST_F(ChangedQueuePair, NotesItsChangesUnderTheRegistrysLock) {
  t_watches_heap = true;
  cycle();
  t_watches_heap = false;
  EXPECT_EQ(g_unlocked, 0);
}

// ThreadSanitizer sees who reads what another changes.
TEST_F(ChangedQueuePair, IsAskedBesideItsChanges) {
  std::thread changes([this] {
    for (int i = 0; i < 1000; ++i) cycle();
  });
  for (int i = 0; i < 4000; ++i) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(shadowib_ibv_query_qp(&qp_.qp.qp_base, &attr, IBV_QP_STATE, &init), 0);
    EXPECT_TRUE(attr.dest_qp_num == 0 || attr.dest_qp_num == 78);
  }
  changes.join();
}

}  // namespace
}  // namespace shadowib
