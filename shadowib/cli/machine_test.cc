// What doctor says of machines other than this one: trees of files in place of /sys, /dev and /proc, and limits,
// texts and trials as other kernels would give them.
#include "shadowib/cli/machine.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hooks/job/near_directory.h"
#include "shadowib/cli/direct_verbs.h"
#include "shadowib/cli/elf_file.h"

namespace shadowib::cli {
namespace {

namespace fs = std::filesystem;

class Machine : public testing::Test {
 protected:
  Machine() {
    char name[] = "/tmp/shadowib-machine-XXXXXX";
    top_ = ::mkdtemp(name);
    places_ = {top_ + "/sys", top_ + "/dev", top_ + "/proc"};
  }
  ~Machine() override {
    std::error_code error;
    fs::remove_all(top_, error);
  }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(top_ + path).parent_path());
    std::ofstream(top_ + path) << text;
  }
  void put_adapter(const std::string& name, const std::string& state, const std::string& layer) {
    put("/sys/class/infiniband/" + name + "/ports/1/state", state + "\n");
    put("/sys/class/infiniband/" + name + "/ports/1/link_layer", layer + "\n");
  }

  std::string top_;
  Places places_;
};

const Finding* find(const Findings& findings, const std::string& what) {
  const auto at = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.what == what; });
  return at == findings.end() ? nullptr : &*at;
}
void expect_finding(const Findings& findings, const char* what, Verdict verdict, const char* words) {
  const Finding* found = find(findings, what);
  ASSERT_NE(found, nullptr) << what;
  EXPECT_EQ(static_cast<int>(found->verdict), static_cast<int>(verdict)) << found->detail;
  EXPECT_NE(found->detail.find(words), std::string::npos) << found->detail;
  EXPECT_EQ(found->remedy.empty(), verdict == Verdict::kOk) << found->remedy;
}
#define EXPECT_FINDING(findings, what, verdict, words)       \
  do {                                                       \
    SCOPED_TRACE(what);                                      \
    expect_finding(findings, what, Verdict::verdict, words); \
  } while (false)

TEST_F(Machine, WithoutAdapter) {
  const Findings findings = examine_devices(places_);
  EXPECT_FINDING(findings, "RDMA devices", kNote, "ib2tcp");
  EXPECT_FINDING(findings, "rdma_cm node", kOk, "do without");
}

TEST_F(Machine, AdapterWithItsNode) {
  put_adapter("mlx5_0", "4: ACTIVE", "InfiniBand");
  fs::create_directories(top_ + "/sys/class/infiniband/mlx5_0/device");
  fs::create_directory_symlink("../../../../bus/pci/drivers/mlx5_core",
                               top_ + "/sys/class/infiniband/mlx5_0/device/driver");
  put("/sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
  put("/dev/infiniband/uverbs3", "");
  put("/dev/infiniband/rdma_cm", "");
  const Findings findings = examine_devices(places_);
  EXPECT_FINDING(findings, "RDMA devices", kOk, "1: --backend auto means verbs");
  EXPECT_FINDING(findings, "mlx5_0", kOk, "driver mlx5_core, port 1 ACTIVE InfiniBand");
  EXPECT_FINDING(findings, "mlx5_0: node", kOk, "/infiniband/uverbs3 may be read and written");
  EXPECT_FINDING(findings, "rdma_cm node", kOk, "may be used");
}

TEST_F(Machine, AdapterThatIsDownOrClosed) {
  put_adapter("rxe0", "1: DOWN", "Ethernet");
  put("/sys/class/infiniband/rxe0/parent", "eth0\n");
  put_adapter("rxe1", "4: ACTIVE", "Ethernet");
  put_adapter("rxe2", "4: ACTIVE", "Ethernet");
  put("/sys/class/infiniband_verbs/uverbs1/ibdev", "rxe1\n");
  put("/sys/class/infiniband_verbs/uverbs2/ibdev", "rxe2\n");
  // No user may write to a path through a file, root neither.
  put("/dev/infiniband/uverbs1", "");
  fs::remove(top_ + "/dev/infiniband/uverbs1");
  fs::create_symlink(top_ + "/sys/class/infiniband/rxe0/parent/uverbs1", top_ + "/dev/infiniband/uverbs1");
  const Findings findings = examine_devices(places_);
  EXPECT_FINDING(findings, "rxe0", kNote, "in software over eth0, port 1 DOWN Ethernet");
  EXPECT_FINDING(findings, "rxe0: node", kMissing, "no verbs device");
  EXPECT_FINDING(findings, "rxe1: node", kMissing, "Not a directory");
  EXPECT_FINDING(findings, "rxe2: node", kMissing, "uverbs2 does not exist");
}

TEST_F(Machine, AnAdapterForIwarp) {
  put_adapter("siw0", "4: ACTIVE", "Ethernet");
  put("/sys/class/infiniband/siw0/node_type", "4: RNIC\n");
  EXPECT_FINDING(examine_devices(places_), "RDMA devices", kOk, "1: --backend auto means ib2tcp");
  EXPECT_FINDING(examine_devices(places_), "siw0", kNote, "iWARP");
  put_adapter("rxe0", "4: ACTIVE", "Ethernet");
  put("/sys/class/infiniband/rxe0/node_type", "1: CA\n");
  EXPECT_FINDING(examine_devices(places_), "RDMA devices", kOk, "2: --backend auto means verbs");
}

TEST(Limits, LockedMemory) {
  EXPECT_FINDING(Findings{judge_locked_memory(8 << 20, true, false)}, "locked memory", kNote, "8.0 MiB");
  EXPECT_FINDING(Findings{judge_locked_memory(64 << 20, true, false)}, "locked memory", kOk, "64.0 MiB");
  EXPECT_FINDING(Findings{judge_locked_memory(RLIM_INFINITY, true, false)}, "locked memory", kOk, "unlimited");
  EXPECT_FINDING(Findings{judge_locked_memory(8 << 20, false, false)}, "locked memory", kOk, "ib2tcp");
  EXPECT_FINDING(Findings{judge_locked_memory(8 << 20, true, true)}, "locked memory", kOk, "CAP_IPC_LOCK");
}

TEST(Limits, Descriptors) {
  EXPECT_FINDING(Findings{judge_descriptors(256, 4096)}, "descriptors", kMissing, "256 of at most 4096");
  EXPECT_FINDING(Findings{judge_descriptors(1024, 4096)}, "descriptors", kOk, "at 768 and above");
  EXPECT_FINDING(Findings{judge_descriptors(RLIM_INFINITY, RLIM_INFINITY)}, "descriptors", kOk,
                 "at 1048320 and above");
}

TEST(Kernel, Trials) {
  Findings findings = judge_trials({{"good", 0, true, "x", "y"},
                                    {"needed", EPERM, true, "nothing goes", "allow it"},
                                    {"handy", ENOSYS, false, "slower", "newer kernel"}});
  EXPECT_FINDING(findings, "kernel interfaces", kOk, "good");
  EXPECT_FINDING(findings, "needed", kMissing, "Operation not permitted: nothing goes");
  EXPECT_FINDING(findings, "handy", kNote, "slower");
  findings = judge_trials({{"needed", EPERM, true, "nothing goes", "allow it"}});
  EXPECT_EQ(findings.size(), 1u);
}

TEST(Kernel, WhatProgramsInherit) {
  const std::string plain =
      "Name:\tcat\nGroups:\t4 24 27 \nSeccomp:\t0\nSeccomp_filters:\t0\nx86_Thread_features:\t\n";
  EXPECT_FINDING(Findings{judge_inheritance(plain)}, "inherited state", kOk, "3 groups");
  EXPECT_FINDING(Findings{judge_inheritance("Name:\tcat\nSeccomp:\t2\n")}, "inherited state", kMissing, "seccomp");
  EXPECT_FINDING(Findings{judge_inheritance("Seccomp:\t0\nx86_Thread_features:\tshstk wrss\n")}, "inherited state",
                 kMissing, "shadow stack");
  std::string many = "Groups:\t";
  for (int i = 0; i < 65; ++i) many += std::to_string(1000 + i) + " ";
  EXPECT_FINDING(Findings{judge_inheritance(many)}, "inherited state", kMissing, "65 supplementary groups");
}

TEST_F(Machine, MemoryMapLimits) {
  auto judge = [&](const char* maps, const char* lowest, const char* overcommit) {
    put("/proc/sys/vm/max_map_count", maps);
    put("/proc/sys/vm/mmap_min_addr", lowest);
    put("/proc/sys/vm/overcommit_memory", overcommit);
    return Findings{judge_memory_map(places_)};
  };
  EXPECT_FINDING(judge("65530\n", "65536\n", "0\n"), "memory map limits", kOk, "max_map_count 65530");
  EXPECT_FINDING(judge("1000\n", "65536\n", "0\n"), "memory map limits", kNote, "many mappings");
  EXPECT_FINDING(judge("65530\n", "1048576\n", "0\n"), "memory map limits", kNote, "below that");
  EXPECT_FINDING(judge("65530\n", "4096\n", "2\n"), "memory map limits", kNote, "reserve more");
  EXPECT_FINDING(Findings{judge_memory_map({"", "", top_ + "/nothing"})}, "memory map limits", kOk, "unknown");
}

TEST(Directory, FileSystemsAndRoom) {
  constexpr unsigned long long kMuch = 1ull << 40;
  EXPECT_FINDING(Findings{judge_directory("/d", 0xEF53, kMuch)}, "checkpoint directory", kOk,
                 "/d, ext4, 1.0 TiB free");
  EXPECT_FINDING(Findings{judge_directory("/d", 0xEF53, 5 << 20)}, "checkpoint directory", kNote, "5.0 MiB");
  EXPECT_FINDING(Findings{judge_directory("/d", 0x6969, kMuch)}, "checkpoint directory", kNote, "nfs");
  EXPECT_FINDING(Findings{judge_directory("/d", 0x01021994, kMuch)}, "checkpoint directory", kNote, "tmpfs");
  EXPECT_EQ(file_system_name(0x1234), "file system 0x1234");
}

TEST_F(Machine, APlaceForNearImages) {
  StoreSpec mem, disk;
  ASSERT_TRUE(parse_store("mem:mirror", &mem).ok() && parse_store("disk:single", &disk).ok());
  char name[] = "/dev/shm/shadowib-machine-XXXXXX";
  const std::string shm = ::mkdtemp(name);
  const Finding fine = examine_near_place(mem, shm, false);
  EXPECT_NE(fine.detail.find(shm + ", tmpfs, "), std::string::npos) << fine.detail;
  EXPECT_NE(fine.verdict, Verdict::kRefused);
  EXPECT_TRUE(fs::is_empty(shm));
  EXPECT_FINDING(Findings{examine_near_place(disk, shm, false)}, "place", kRefused, "lies in memory");
  EXPECT_FINDING(Findings{examine_near_place(disk, shm, true)}, "place on disk", kNote, "auto does without it");
  EXPECT_FINDING(Findings{examine_near_place(mem, shm + "/nothing", false)}, "place", kRefused, "No such file");
  fs::create_symlink(top_, near_root(shm));
  EXPECT_FINDING(Findings{examine_near_place(mem, shm, false)}, "place", kRefused, "is a link");
  EXPECT_FINDING(Findings{examine_near_place(mem, shm, true)}, "place in memory", kRefused, "is a link");
  EXPECT_TRUE(fs::is_symlink(near_root(shm))) << "what was there stays";
  fs::remove_all(shm);
}

TEST(NearMemory, LimitsOfCgroups) {
  constexpr std::uint64_t kGiB = 1ull << 30, kNone = ~std::uint64_t{0};
  EXPECT_FINDING(Findings{judge_near_memory({64 * kGiB, 48 * kGiB, kNone})}, "memory", kOk,
                 "48.0 GiB free of 64.0 GiB, no limit");
  EXPECT_FINDING(Findings{judge_near_memory({64 * kGiB, 6 * kGiB, 8 * kGiB})}, "memory", kNote, "allows 8.0 GiB");
  EXPECT_FINDING(Findings{judge_near_memory({64 * kGiB, 48 * kGiB, 64 * kGiB})}, "memory", kOk, "no limit");
  EXPECT_FINDING(Findings{judge_near_memory({64 * kGiB, kGiB / 2, kNone})}, "memory", kNote, "512.0 MiB free");
}

TEST(NearMemory, HostsOfASet) {
  const auto judge = [](const char* text) {
    StoreSpec spec;
    EXPECT_TRUE(parse_store(text, &spec).ok());
    return judge_hosts_for(spec);
  };
  EXPECT_TRUE(judge("mem:single").empty());
  EXPECT_FINDING(judge("mem:mirror"), "hosts", kNote, "on 2 hosts of different failure domains");
  EXPECT_FINDING(judge("disk:xor"), "hosts", kNote, "on 2 hosts");
  EXPECT_FINDING(judge("disk:rs:3"), "hosts", kNote, "on 4 hosts");
}

TEST_F(Machine, LogindThatEmptiesSharedMemory) {
  const auto judge = [this](const char* place = "/dev/shm", unsigned uid = 1000) {
    return examine_remove_ipc(top_, place, uid, "ada");
  };
  EXPECT_TRUE(judge().empty()) << "nothing without systemd-logind";
  put("/run/systemd/system/x", "");
  EXPECT_TRUE(judge().empty()) << "nor without logind";
  put("/run/systemd/users/x", "");
  EXPECT_FINDING(judge(), "RemoveIPC", kNote, "yes, by default");
  EXPECT_FINDING(judge("/dev/shm/below"), "RemoveIPC", kNote, "yes, by default");
  EXPECT_TRUE(judge("/dev/shmem").empty());
  EXPECT_TRUE(judge("/mnt/tmpfs").empty());
  EXPECT_TRUE(judge("/dev/shm", 0).empty());
  EXPECT_TRUE(judge("/dev/shm", 999).empty());
  put("/usr/lib/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
  EXPECT_FINDING(judge(), "RemoveIPC", kOk, "no, by ");
  put("/etc/systemd/logind.conf", "# RemoveIPC=no\n[Login]\n#RemoveIPC=no\n[Other]\nRemoveIPC=no\n");
  EXPECT_FINDING(judge(), "RemoveIPC", kNote, "yes, by default");
  put("/usr/lib/systemd/logind.conf.d/50-vendor.conf", "[Login]\nRemoveIPC = off\n");
  EXPECT_FINDING(judge(), "RemoveIPC", kOk, "50-vendor.conf");
  put("/etc/systemd/logind.conf.d/40-site.conf", "[Login]\nRemoveIPC=yes\n");
  EXPECT_FINDING(judge(), "RemoveIPC", kOk, "50-vendor.conf");
  put("/run/systemd/logind.conf.d/60-site.conf", "[Login]\nRemoveIPC=True\nRemoveIPC=nonsense\n");
  EXPECT_FINDING(judge(), "RemoveIPC", kNote, "60-site.conf");
  put("/etc/systemd/logind.conf.d/60-site.conf", "");  // hides it
  EXPECT_FINDING(judge(), "RemoveIPC", kOk, "50-vendor.conf");
  fs::remove(top_ + "/etc/systemd/logind.conf.d/60-site.conf");
  put("/var/lib/systemd/linger/ada", "");
  EXPECT_FINDING(judge(), "RemoveIPC", kOk, "this user lingers");
}

TEST_F(Machine, StorageIsTriedAndLeftAsItWas) {
  const Findings findings = examine_storage(top_ + "/a/b", "");
  EXPECT_FINDING(findings, "checkpoint directory", kNote, "does not exist yet");
  EXPECT_FINDING(findings, "locks", kOk, "open-file-description");
  EXPECT_FINDING(findings, "exchange", kOk, "dir:");
  EXPECT_TRUE(fs::is_empty(top_));
  put("/file", "");
  EXPECT_FINDING(examine_storage(top_ + "/file/b", ""), "checkpoint directory", kMissing, "/file");
  EXPECT_FINDING(examine_storage(top_ + "/file/b", ""), "exchange", kMissing, "/file");
  EXPECT_FINDING(examine_storage(top_, "none:x"), "exchange", kMissing, "none");
}

TEST(Transports, LibfabricIsMissedOnlyByWhoNamesIt) {
  const Findings plain = examine_transports("auto"), named = examine_transports("ofi:tcp");
  EXPECT_FINDING(plain, "transport shm", kOk, "memfd_create");
  EXPECT_FINDING(plain, "transport tcp", kOk, "loopback");
  const Finding *without = find(plain, "transport ofi"), *with = find(named, "transport ofi");
  ASSERT_TRUE(without != nullptr && with != nullptr);
  if (without->verdict == Verdict::kOk) {
    EXPECT_NE(without->detail.find("libfabric "), std::string::npos);
    EXPECT_EQ(with->verdict, Verdict::kOk);
  } else {
    EXPECT_EQ(without->verdict, Verdict::kNote);
    EXPECT_EQ(with->verdict, Verdict::kMissing);
  }
}

TEST_F(Machine, BackendOfASet) {
  put("/lib/libshadowib-ib2tcp.so", "");
  const std::string here = top_ + "/lib/libshadowib-ib2tcp.so", gone = top_ + "/lib/gone.so";
  EXPECT_FINDING(Findings{judge_backend("auto", "", false, here)}, "backend", kOk, "go on over ib2tcp");
  EXPECT_FINDING(Findings{judge_backend("verbs", "auto", true, gone)}, "backend", kOk, "go on over verbs");
  EXPECT_FINDING(Findings{judge_backend("verbs", "verbs", false, here)}, "backend", kRefused, "no RDMA device");
  EXPECT_FINDING(Findings{judge_backend("ib2tcp", "ib2tcp", true, gone)}, "backend", kRefused,
                 "gone.so is not there");
  EXPECT_FINDING(Findings{judge_backend("ib2tcp", "", false, "")}, "backend", kNote, "no libshadowib.so");
}

TEST(DirectVerbs, NamesAndLists) {
  EXPECT_EQ(direct_verbs_among({"ibv_open_device", "mlx5dv_create_qp", "xmlx5dv_x", "efadv_query_device"}),
            (std::vector<std::string>{"mlx5dv_create_qp", "efadv_query_device"}));
  const auto libraries = parse_loader_list(
      "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibibverbs.so.1 => /usr/lib/libibverbs.so.1 (0x00007f1)\n"
      "\tlibgone.so.2 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n\tstatically linked\n");
  ASSERT_EQ(libraries.size(), 3u);
  EXPECT_EQ(libraries[0].name, "libibverbs.so.1");
  EXPECT_EQ(libraries[0].path, "/usr/lib/libibverbs.so.1");
  EXPECT_EQ(libraries[1].name, "libgone.so.2");
  EXPECT_EQ(libraries[1].path, "");
  EXPECT_EQ(libraries[2].path, "/lib64/ld-linux-x86-64.so.2");
}

TEST(DirectVerbs, OfPrograms) {
  EXPECT_FINDING(examine_program(DIRECT_VERBS_PROGRAM), "direct verbs", kNote, "linked to mlx5dv_is_supported");
  EXPECT_FINDING(examine_program(DIRECT_VERBS_PROGRAM), "its libraries", kMissing, "not found: libmlx5-absent.so");
  const Findings self = examine_program("/proc/self/exe");
  EXPECT_FINDING(self, "program", kOk, "can be run");
  EXPECT_FINDING(self, "direct verbs", kOk, "neither");
  EXPECT_FINDING(examine_program("/nothing/there"), "program", kRefused, "no such program");
}

TEST(DirectVerbs, UndefinedSymbolsOfThisProgram) {
  ElfFacts elf;
  ASSERT_TRUE(read_elf("/proc/self/exe", &elf));
  EXPECT_NE(std::find(elf.undefined.begin(), elf.undefined.end(), "mkdtemp"), elf.undefined.end());
}

TEST(Restart, EachLineIsThere) {
  const Findings findings = examine_restart();
  for (const char* what : {"user namespaces", "recorded pids", "a /proc of its own", "memory layout", "vdso"})
    EXPECT_NE(find(findings, what), nullptr) << what;
  const Findings kernel = examine_kernel({});
  EXPECT_FINDING(kernel, "C library", kOk, "glibc ");
  EXPECT_FINDING(kernel, "processor", kOk, "x86-64");
}

}  // namespace
}  // namespace shadowib::cli
