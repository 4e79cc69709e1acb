// Registered memory that its owner unmaps or protects: nobody dies, and nothing lands in other memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "ib2tcp/conformance/fixture.h"
#include "shadowib/base/memory_watch.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::size_t kBytes = 1 << 20;

// A region in a mapping of its own. Its owner's calls tell the backend, as the guards of libc's functions do.
class OwnMapping {
 public:
  explicit OwnMapping(Endpoint& endpoint) : endpoint_(endpoint) {
    memory_ = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(memory_, 'o', kBytes);
    mr_ = endpoint.ops.reg_mr(endpoint.pd, memory_, kBytes, address(), kAllAccess);
    EXPECT_NE(mr_, nullptr);
  }
  ~OwnMapping() {
    EXPECT_EQ(endpoint_.ops.dereg_mr(mr_), 0);
    ::munmap(memory_, kBytes);
  }
  void protect(int protection, std::size_t offset = 0, std::size_t bytes = kBytes) {
    const bool usable = protection == (PROT_READ | PROT_WRITE);
    if (!usable) tell(MemoryChange::kProtected, offset, bytes);
    ASSERT_EQ(::mprotect(memory_ + offset, bytes, protection), 0);
    if (usable) tell(MemoryChange::kUsable, offset, bytes);
  }
  // The memory goes. The addresses stay taken: in a hole, the next mapping of anybody (a sanitizer's, say) could come
  // to lie, and map_anew() or the destructor would destroy it.
  void unmap(std::size_t offset = 0, std::size_t bytes = kBytes) {
    tell(MemoryChange::kGone, offset, bytes);
    map_at(offset, bytes, PROT_NONE);
    tell(MemoryChange::kWent, offset, bytes);
  }
  void map_anew() {
    map_at(0, kBytes, PROT_READ | PROT_WRITE);
    std::memset(memory_, 'n', kBytes);
  }
  void tell(MemoryChange change, std::size_t offset, std::size_t bytes) {
    endpoint_.ops.memory_changes(memory_ + offset, bytes, change);
  }
  char* at(std::size_t offset) { return memory_ + offset; }
  std::uint64_t address(std::size_t offset = 0) const { return reinterpret_cast<std::uint64_t>(memory_) + offset; }
  ibv_sge sge(std::size_t offset, std::uint32_t length) const { return {address(offset), length, mr_->lkey}; }
  std::uint32_t key() const { return mr_->rkey; }

 private:
  void map_at(std::size_t offset, std::size_t bytes, int protection) {
    ASSERT_EQ(::mmap(memory_ + offset, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              memory_ + offset);
  }

  Endpoint& endpoint_;
  char* memory_;
  ibv_mr* mr_;
};

// One request of x's that touches `mapping`, which is y's if the request is remote, else x's.
struct Access {
  const char* name;
  bool remote;
  ibv_wc_status gone;  // its status if the memory is gone
};
constexpr Access kAccesses[] = {{"write", true, IBV_WC_REM_ACCESS_ERR},     {"read", true, IBV_WC_REM_ACCESS_ERR},
                                {"atomic", true, IBV_WC_REM_ACCESS_ERR},    {"send", true, IBV_WC_REM_OP_ERR},
                                {"write from", false, IBV_WC_LOC_PROT_ERR}, {"read to", false, IBV_WC_LOC_PROT_ERR},
                                {"atomic to", false, IBV_WC_LOC_PROT_ERR}};

void post(const Access& access, Endpoint& x, Endpoint& y, OwnMapping& mapping, std::uint32_t bytes) {
  const std::string name = access.name;
  if (name == "write")
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, bytes)}, mapping.address(), mapping.key()), 0);
  else if (name == "read")
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, bytes)}, mapping.address(), mapping.key()), 0);
  else if (name == "atomic")
    ASSERT_EQ(x.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(0, 8)}, mapping.address(), mapping.key(), 1, 0),
              0);
  else if (name == "write from")
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {mapping.sge(0, bytes)}, y.address(0), y.mr->rkey), 0);
  else if (name == "read to")
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {mapping.sge(0, bytes)}, y.address(0), y.mr->rkey), 0);
  else if (name == "atomic to")
    ASSERT_EQ(x.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {mapping.sge(0, 8)}, y.address(0), y.mr->rkey, 1, 0), 0);
  else {
    ASSERT_EQ(y.post_recv(5, {mapping.sge(0, bytes)}), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, bytes)}), 0);
  }
}

TEST_P(Conformance, ProtectedMemoryIsReachedAsByAnAdapter) {
  for (int protection : {PROT_NONE, PROT_READ})
    for (const Access& access : kAccesses)
      for (std::uint32_t bytes : {64u, 100000u}) {
        SCOPED_TRACE(std::string(access.name) + ", " + std::to_string(bytes) + " bytes, protection " +
                     std::to_string(protection));
        Endpoint x(a()), y(b());
        connect(x, y);
        OwnMapping mapping(access.remote ? y : x);
        std::memset(x.at(0), 'x', bytes);
        std::memset(y.at(0), 'y', bytes);
        mapping.protect(protection);
        post(access, x, y, mapping, bytes);
        EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
        const std::string name = access.name;
        if (name == "send") {
          EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
        }
        mapping.protect(PROT_READ | PROT_WRITE);
        const char* to = name == "read" ? x.at(0) : name == "write from" ? y.at(0) : mapping.at(0);
        const char want = name == "read" || name == "write from" ? 'o' : access.remote ? 'x' : 'y';
        if (name == "atomic")
          EXPECT_EQ(mapping.at(0)[0], 'o' + 1);
        else
          EXPECT_EQ(std::string(to, name == "atomic to" ? 8 : bytes),
                    std::string(name == "atomic to" ? 8 : bytes, want));
        // Plain again: the processor's own copies find it so.
        post(access, x, y, mapping, bytes);
        EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
      }
}

TEST_P(Conformance, MemoryThatIsGoneIsAnErrorEvenIfOtherMemoryIsThere) {
  for (bool replaced : {false, true})
    for (const Access& access : kAccesses)
      for (std::uint32_t bytes : {64u, 100000u}) {
        SCOPED_TRACE(std::string(access.name) + ", " + std::to_string(bytes) + " bytes, replaced " +
                     std::to_string(replaced));
        Endpoint x(a()), y(b());
        connect(x, y);
        OwnMapping mapping(access.remote ? y : x);
        mapping.unmap();
        if (replaced) mapping.map_anew();
        post(access, x, y, mapping, bytes);
        EXPECT_WC(x.wait(), 1, access.gone);
        if (std::string(access.name) == "send") {
          EXPECT_WC(y.wait(), 5, IBV_WC_LOC_PROT_ERR);
        }
        if (replaced) {
          EXPECT_EQ(std::string(mapping.at(0), kBytes), std::string(kBytes, 'n'));
        }
        if (!replaced) mapping.map_anew();
      }
}

TEST_P(Conformance, OnlyTheChangedPartOfARegionIsCutOff) {
  Endpoint x(a()), y(b());
  connect(x, y);
  OwnMapping mapping(y);
  mapping.unmap(kBytes / 2, kBytes / 2);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 4096)}, mapping.address(kBytes / 2 - 4096), mapping.key()),
            0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 4096)}, mapping.address(kBytes / 2 - 4095), mapping.key()),
            0);
  EXPECT_WC(x.wait(), 2, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Conformance, AFailedUnmappingLeavesTheMemoryReachable) {
  Endpoint x(a()), y(b());
  connect(x, y);
  OwnMapping mapping(y);
  mapping.tell(MemoryChange::kGone, 0, kBytes);
  mapping.tell(MemoryChange::kKept, 0, kBytes);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 4096)}, mapping.address(), mapping.key()), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

// What was unmapped before, and has other memory in its place now, does not come back by a call that fails.
TEST_P(Conformance, AFailedUnmappingBringsNothingBack) {
  Endpoint x(a()), y(b());
  connect(x, y);
  OwnMapping mapping(y);
  mapping.unmap();
  mapping.map_anew();
  mapping.tell(MemoryChange::kGone, 0, kBytes);
  mapping.tell(MemoryChange::kKept, 0, kBytes);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 4096)}, mapping.address(), mapping.key()), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(std::string(mapping.at(0), kBytes), std::string(kBytes, 'n'));
}

TEST_P(Conformance, MemoryMayBeProtectedBeforeItIsRegistered) {
  Endpoint x(a()), y(b());
  connect(x, y);
  auto* memory = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ibv_mr* mr = y.ops.reg_mr(y.pd, memory, kBytes, reinterpret_cast<std::uint64_t>(memory), kAllAccess);
  ASSERT_NE(mr, nullptr);
  y.ops.memory_changes(memory, kBytes, MemoryChange::kReadOnly);  // kernels before 6.11 do not tell
  std::memset(x.at(0), 'x', 64);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 64)}, reinterpret_cast<std::uint64_t>(memory), mr->rkey), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(memory[63], 'x');
  EXPECT_EQ(y.ops.dereg_mr(mr), 0);
  ::munmap(memory, kBytes);
}

// A message is half in (or half out) when its memory changes.
TEST_P(Conformance, MemoryChangesWhileAMessageIsOnItsWay) {
  constexpr std::uint32_t kLarge = 32 << 20;  // more than any transport holds
  for (bool incoming : {true, false})
    for (bool gone : {false, true}) {
      SCOPED_TRACE("incoming " + std::to_string(incoming) + ", gone " + std::to_string(gone));
      Endpoint x(a(), {}, kLarge), y(b(), {}, kLarge);
      connect(x, y);
      Endpoint& owner = incoming ? y : x;
      auto* memory =
          static_cast<char*>(::mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      ibv_mr* mr = owner.ops.reg_mr(owner.pd, memory, kLarge, reinterpret_cast<std::uint64_t>(memory), kAllAccess);
      ASSERT_NE(mr, nullptr);
      ASSERT_EQ(y.post_recv(5, {}), 0);
      ASSERT_EQ(x.post_send(0, {}), 0);  // brings the connection up
      EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
      EXPECT_WC(x.wait(), 0, IBV_WC_SUCCESS);
      x.process.stop_helper();
      if (&y.process != &x.process) y.process.stop_helper();
      std::memset(x.at(0), 'x', kLarge);
      if (!incoming) std::memset(memory, 'x', kLarge);
      const ibv_sge from =
          incoming ? x.sge(0, kLarge) : ibv_sge{reinterpret_cast<std::uint64_t>(memory), kLarge, mr->lkey};
      const std::uint64_t to = incoming ? reinterpret_cast<std::uint64_t>(memory) : y.address(0);
      ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {from}, to, incoming ? mr->rkey : y.mr->rkey), 0);
      for (int i = 0; i < 4; ++i) y.poll(), x.poll();
      owner.ops.memory_changes(memory, kLarge, gone ? MemoryChange::kGone : MemoryChange::kProtected);
      if (gone)
        ASSERT_EQ(::munmap(memory, kLarge), 0);
      else
        ASSERT_EQ(::mprotect(memory, kLarge, PROT_NONE), 0);
      x.process.start_helper();
      if (&y.process != &x.process) y.process.start_helper();
      const ibv_wc wc = x.wait(20000);
      // A message on its way out was copied before its memory went.
      EXPECT_WC(wc, 1, incoming && gone ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
      if (!gone) ::mprotect(memory, kLarge, PROT_READ);
      if (wc.status == IBV_WC_SUCCESS) {
        const char* there = incoming ? memory : y.at(0);
        EXPECT_EQ(there[0], 'x');
        EXPECT_EQ(there[kLarge - 1], 'x');
        EXPECT_EQ(std::memcmp(there, there + 1, kLarge - 1), 0);
      }
      EXPECT_EQ(owner.ops.dereg_mr(mr), 0);
      if (!gone) ::munmap(memory, kLarge);
    }
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
