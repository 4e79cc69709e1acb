// What may carry the emulated adapter's bytes. Each transport's calls are tried; libfabric is only asked its version.
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "shadowib/cli/in_child.h"
#include "shadowib/cli/machine.h"

namespace shadowib::cli {
namespace {

int try_shared_memory() {
  const int fd = ::memfd_create("shadowib-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno;
  if (::ftruncate(fd, 4096) != 0) return errno;
  return ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED ? 0 : errno;
}

int try_tcp() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || client < 0) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, generic, length) != 0 || ::listen(listener, 1) != 0) return errno;
  if (::getsockname(listener, generic, &length) != 0 || ::connect(client, generic, length) != 0) return errno;
  return 0;
}

// As ib2tcp loads it (transports/ofi_library.cc). In a child: its libraries have constructors that install handlers.
int ask_libfabric(int told) {
  ::setenv("IPATH_NO_BACKTRACE", "1", 1);
  void* library = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return ENOENT;
  auto version = reinterpret_cast<std::uint32_t (*)()>(::dlsym(library, "fi_version"));
  if (version == nullptr || ::dlvsym(library, "fi_getinfo", "FABRIC_1.3") == nullptr) return ELIBBAD;
  const std::string text = std::to_string(version() >> 16) + "." + std::to_string(version() & 0xffff);
  return ::write(told, text.data(), text.size()) > 0 ? 0 : EIO;
}

// A sibling process may read another's memory: what lets shm move data without a copy in between.
Finding cross_memory_attach() {
  static int word = 42;
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0)
    return {"cross memory attach", Verdict::kNote, std::strerror(errno), "ulimit -n 1024 or more"};
  pid_t target = ::fork();
  if (target == 0) {
    char c;
    ::close(pipe_fds[1]);
    ::_exit(::read(pipe_fds[0], &c, 1) == 0 ? 0 : 1);  // lives until the command closes the pipe
  }
  const int error = in_child([target] {
    int copy = 0;
    iovec here{&copy, sizeof(copy)}, there{&word, sizeof(word)};
    return ::process_vm_readv(target, &here, 1, &there, 1, 0) == sizeof(copy) && copy == word ? 0 : errno;
  });
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  ::waitpid(target, nullptr, 0);
  if (error == 0) return {"cross memory attach", Verdict::kOk, "allowed between a user's processes", ""};
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  return {"cross memory attach", Verdict::kNote,
          std::string(std::strerror(error)) + (scope.empty() ? "" : ", yama ptrace_scope is " + scope),
          "shm copies through its rings instead; sysctl kernel.yama.ptrace_scope=0 would allow it"};
}

Finding libfabric(const std::string& transport) {
  std::string version;
  const int error = in_child(ask_libfabric, &version);
  if (error == 0) return {"transport ofi", Verdict::kOk, "libfabric " + version + "; fi_info -l lists providers", ""};
  const bool wanted = transport.compare(0, 4, "ofi:") == 0;
  return {"transport ofi", wanted ? Verdict::kMissing : Verdict::kNote,
          error == ELIBBAD ? "libfabric.so.1 lacks fi_getinfo of 1.3 or fi_version"
          : wanted         ? "no libfabric.so.1, but SHADOWIB_IB2TCP_TRANSPORT is " + transport
                           : "no libfabric.so.1",
          "needed by SHADOWIB_IB2TCP_TRANSPORT=ofi:PROVIDER only: apt install libfabric1"};
}

}  // namespace

Finding judge_backend(const std::string& recorded, const std::string& wanted, bool adapter,
                      const std::string& library) {
  const std::string name = wanted.empty() || wanted == "auto" ? (adapter ? "verbs" : "ib2tcp") : wanted;
  const std::string text = "saved with backend " + recorded + ", will go on over " + name;
  if (name == "verbs" && !adapter)
    return {"backend", Verdict::kRefused, text + ", but there is no RDMA device",
            "unset SHADOWIB_BACKEND, or load an adapter's driver"};
  if (name == "ib2tcp" && library.empty())
    return {"backend", Verdict::kNote, text + "; the images name no libshadowib.so",
            "they are of no job of shadowib run"};
  if (name == "ib2tcp" && ::access(library.c_str(), R_OK) != 0)
    return {"backend", Verdict::kRefused, text + ", but " + library + " is not there",
            "install shadowib where the members had it, or link that directory to where it is"};
  return {"backend", Verdict::kOk, text, ""};
}

Findings examine_transports(const std::string& transport) {
  Findings findings;
  auto add = [&findings](const char* what, int error, const char* good, const char* remedy) {
    if (error == 0)
      findings.push_back({what, Verdict::kOk, good, ""});
    else
      findings.push_back({what, Verdict::kMissing, std::strerror(error), remedy});
  };
  add("transport shm", in_child(try_shared_memory), "memfd_create and shared mappings work",
      "a seccomp filter denies memfd_create(2): allow it, or set SHADOWIB_IB2TCP_TRANSPORT=tcp");
  findings.push_back(cross_memory_attach());
  add("transport tcp", in_child(try_tcp), "connections over the loopback interface work",
      "bring it up (ip link set lo up); in a container give it a network");
  findings.push_back(libfabric(transport));
  return findings;
}

}  // namespace shadowib::cli
