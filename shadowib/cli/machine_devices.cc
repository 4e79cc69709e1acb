// Adapters as the kernel lists them, and what a user needs to open them.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shadowib/base/descriptors.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr unsigned long long kAdapterLockedBytes = 64ull << 20;

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// "4: ACTIVE" -> "ACTIVE"
std::string behind_colon(const std::string& text) {
  const std::size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

// The kernel driver; one in software has no bus behind it and stands on a network interface.
std::string driver_of(const std::string& device) {
  std::error_code error;
  const fs::path driver = fs::read_symlink(device + "/device/driver", error);
  if (!error) return "driver " + driver.filename().string();
  const std::string parent = first_line(device + "/parent");
  return parent.empty() ? "driver unknown" : "in software over " + parent;
}

// The verbs device node of an adapter, "" if the kernel has made none.
std::string node_of(const Places& places, const std::string& adapter) {
  const std::string top = places.sys + "/class/infiniband_verbs";
  for (const std::string& name : entries(top))
    if (first_line(top + "/" + name + "/ibdev") == adapter) return name;
  return {};
}

Finding node_finding(const Places& places, const std::string& adapter) {
  const std::string what = adapter + ": node", name = node_of(places, adapter);
  if (name.empty())
    return {what, Verdict::kMissing, "the kernel offers no verbs device for it", "modprobe ib_uverbs"};
  const std::string path = places.dev + "/infiniband/" + name;
  if (::access(path.c_str(), R_OK | W_OK) == 0) return {what, Verdict::kOk, path + " may be read and written", ""};
  if (errno == ENOENT)
    return {what, Verdict::kMissing, path + " does not exist",
            "start udev; in a container pass it in (docker run --device=" + path +
                "); or use "
                "--backend ib2tcp"};
  return {what, Verdict::kMissing, path + ": " + std::strerror(errno),
          "give your user access to it (udev rule, group rdma), or use --backend ib2tcp"};
}

// The kernel's node type 4, "RNIC".
bool is_iwarp(const Places& places, const std::string& adapter) {
  return first_line(places.sys + "/class/infiniband/" + adapter + "/node_type").rfind("4:", 0) == 0;
}

Finding adapter_finding(const Places& places, const std::string& adapter) {
  const std::string top = places.sys + "/class/infiniband/" + adapter;
  std::string detail = driver_of(top);
  bool active = false;
  for (const std::string& port : entries(top + "/ports")) {
    const std::string at = top + "/ports/" + port;
    const std::string state = behind_colon(first_line(at + "/state"));
    active = active || state == "ACTIVE";
    detail += ", port " + port + " " + state + " " + first_line(at + "/link_layer");
  }
  if (is_iwarp(places, adapter))
    return {adapter, Verdict::kNote,
            detail + "; iWARP, whose queue pairs only the kernel's connection manager connects",
            "use --backend ib2tcp, which auto means if there is no other adapter"};
  if (active) return {adapter, Verdict::kOk, detail, ""};
  return {adapter, Verdict::kNote, detail,
          "no port is active: set the link up (ip link set DEV up; InfiniBand needs a subnet manager), or use "
          "--backend ib2tcp"};
}

// Members need no such node: what librdmacm writes there is answered in the process (shadowib/cm/device_file.h).
Finding rdma_cm_node(const Places& places) {
  const std::string path = places.dev + "/infiniband/rdma_cm";
  const bool usable = ::access(path.c_str(), R_OK | W_OK) == 0;
  return {"rdma_cm node", Verdict::kOk,
          path + (usable ? " may be used, " : std::string(": ") + std::strerror(errno) + "; ") +
              "members of a job do without it",
          ""};
}

bool may_lock_memory() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0 || (data[0].effective & (1u << CAP_IPC_LOCK)) == 0) return false;
  // The kernel asks for it in the first user namespace, which maps every id onto itself.
  std::ifstream map("/proc/self/uid_map");
  unsigned long inside = 1, outside = 1, count = 0;
  return map >> inside >> outside >> count && inside == 0 && outside == 0 && count == 4294967295ul;
}

std::string limit_text(unsigned long long limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

}  // namespace

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding judge_locked_memory(unsigned long long limit, bool adapter, bool lock_privilege) {
  const std::string text = limit == RLIM_INFINITY ? "unlimited" : human_bytes(limit);
  if (lock_privilege) return {"locked memory", Verdict::kOk, text + ", and CAP_IPC_LOCK lifts the limit", ""};
  if (!adapter) return {"locked memory", Verdict::kOk, text + "; ib2tcp locks none", ""};
  if (limit >= kAdapterLockedBytes) return {"locked memory", Verdict::kOk, text, ""};
  return {"locked memory", Verdict::kNote, text + ", and all memory an adapter reaches is locked",
          "ulimit -l unlimited, or \"* - memlock unlimited\" in /etc/security/limits.conf and a new login"};
}

Finding judge_descriptors(unsigned long long soft, unsigned long long hard) {
  constexpr unsigned long long kLimit = kMaxOwnedDescriptors;
  const unsigned long long top = std::min(soft, kLimit);
  std::string text = limit_text(soft) + " of at most " + limit_text(hard);
  if (top < 4ull * kOwnedDescriptorWindow)
    return {"descriptors", Verdict::kMissing, text + ": shadowib's own would stand among the program's",
            "ulimit -n " + std::to_string(4 * kOwnedDescriptorWindow) + " or more"};
  return {"descriptors", Verdict::kOk,
          text + "; shadowib's own are put at " + std::to_string(top - kOwnedDescriptorWindow) + " and above", ""};
}

Findings examine_devices(const Places& places) {
  Findings findings;
  const std::vector<std::string> adapters = entries(places.sys + "/class/infiniband");
  if (adapters.empty())
    findings.push_back({"RDMA devices", Verdict::kNote, "none: programs run over ib2tcp",
                        "to use an adapter load its driver; nothing to do without one"});
  else
    findings.push_back(
        {"RDMA devices", Verdict::kOk,
         std::to_string(adapters.size()) + ": --backend auto means " +
             (std::all_of(adapters.begin(), adapters.end(), [&](const std::string& a) { return is_iwarp(places, a); })
                  ? "ib2tcp"
                  : "verbs") +
             " here",
         ""});
  for (const std::string& adapter : adapters) {
    findings.push_back(adapter_finding(places, adapter));
    findings.push_back(node_finding(places, adapter));
  }
  findings.push_back(rdma_cm_node(places));
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  findings.push_back(judge_locked_memory(limit.rlim_cur, !adapters.empty(), may_lock_memory()));
  ::getrlimit(RLIMIT_NOFILE, &limit);
  findings.push_back(judge_descriptors(limit.rlim_cur, limit.rlim_max));
  return findings;
}

}  // namespace shadowib::cli
