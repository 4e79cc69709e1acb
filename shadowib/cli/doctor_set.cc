#include "shadowib/cli/doctor_set.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "hooks/imager/restore/rehearsal.h"
#include "shadowib/base/needed_verbs.h"
#include "shadowib/cli/clc_sets.h"
#include "shadowib/cli/in_child.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kLibrary[] = "/libshadowib.so";

// Restarted members are the recorded library still, and look for backends where it was.
std::string backend_library(const LoadedImage& image) {
  for (const std::string& path : image.paths) {
    const std::size_t at = path.rfind('/');
    if (at != std::string::npos && path.compare(at, sizeof(kLibrary) - 1, kLibrary) == 0)
      return path.substr(0, at) + "/shadowib/libshadowib-ib2tcp.so";
  }
  return {};
}

bool machine_has_adapter() {
  std::error_code error;
  return fs::directory_iterator("/sys/class/infiniband", error) != fs::directory_iterator();
}

Finding judge_step(const RehearsedStep& step) {
  static constexpr struct {
    const char* what;
    const char* remedy;
  } kRemedies[] = {
      {"processor",
       "restart on a machine with these features, or start the job with GLIBC_TUNABLES=glibc.cpu.hwcaps="
       "-FEATURE,... where they are to be left out"},
      {"vdso", "boot the kernel that is named, or restart where it runs"},
      {"C library", "restart where glibc is the recorded one"},
      {"user", "restart as the recorded user, or as root"},
      {"pids", "see what the machine's lines say of namespaces and recorded pids"},
      {"files", "put them back as they were at the checkpoint, readable by this user, or restart where they are"},
      {"held files",
       "end the process that is named, or let it unlock the file; if that is your flock(1), restart by it, too: "
       "flock "
       "FILE shadowib restart SET"},
      {"mapped files", "nothing to do; memory is not shared with other programs then"},
      {"memory", "raise the limit that is named (sysctl, ulimit -l); free memory or add swap space"},
      {"shared memory",
       "end the processes that use it, remove what has its name, or restart all members that share it together"},
      {"ports", "stop what uses them; after an orderly end of a connection the kernel keeps its port for 60 s"},
      {"descriptors", "raise the hard limit: nofile in /etc/security/limits.conf and a new login"},
  };
  if (step.outcome == RehearsedStep::kReady) return {step.what, Verdict::kOk, step.text, ""};
  std::string remedy;
  for (const auto& r : kRemedies)
    if (step.what == std::string_view(r.what)) remedy = r.remedy;
  return {step.what, step.outcome == RehearsedStep::kLimited ? Verdict::kNote : Verdict::kRefused, step.text, remedy};
}

Finding job_free(const Common& common, const std::string& job) {
  std::string who;
  if (!job_alive(common.directory, job, &who)) return {"job", Verdict::kOk, job + " is not running", ""};
  return {"job", Verdict::kRefused, job + " is alive (" + who + ")", "end it first, or use checkpoint --kill"};
}

// Loaded in a child, as the restarted members will load it.
Status check_verbs_library(const std::string& file) {
  std::string why;
  const int error = in_child(
      [&file](int fd) {
        void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr && ::dlsym(handle, "ibv_open_device") == nullptr) return EINVAL;
        const std::string text = handle != nullptr ? missing_verbs(handle) : ::dlerror();
        if (text.empty()) return 0;
        if (::write(fd, text.data(), text.size()) < 0) return errno;
        return handle != nullptr ? ENOSYS : ENOENT;
      },
      &why);
  if (error == EINVAL)
    return Status::of(Code::kUsage, 0, "%.200s is not a verbs library: it exports no ibv_open_device", file.c_str());
  if (error == ENOSYS)
    return Status::of(
        Code::kUsage, 0,
        "%.100s cannot be used: it lacks %.130s; name a complete verbs library with SHADOWIB_IBVERBS, or "
        "use --backend ib2tcp",
        file.c_str(), why.c_str());
  if (error != 0)
    return Status::of(Code::kNotFound, 0,
                      "cannot load the system's verbs library %.100s: %.150s; name another with SHADOWIB_IBVERBS, or "
                      "use --backend ib2tcp",
                      file.c_str(), why.c_str());
  return {};
}

// How many devices a verbs library finds; -1 if it cannot tell. Asked in a child, which loads drivers.
int devices_found(const std::string& library) {
  constexpr int kUnknown = 255;
  const int found = in_child([&library] {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    using GetList = void** (*)(int*);
    const auto get_list =
        reinterpret_cast<GetList>(handle != nullptr ? ::dlsym(handle, "ibv_get_device_list") : nullptr);
    int count = 0;
    if (get_list == nullptr || (get_list(&count) == nullptr && errno != ENOSYS)) return kUnknown;
    return std::clamp(count, 0, kUnknown - 1);
  });
  return found == kUnknown ? -1 : found;
}

// The verbs library that members will use if the command names none: what they were started with. Empty: not known,
// since a set that ran over verbs with another library names it only in its memory.
std::string recorded_verbs_library(const LoadedImage& image, const std::string& backend) {
  const bool mapped = std::any_of(image.paths.begin(), image.paths.end(), [](const std::string& path) {
    return path.find("/libibverbs.so") != std::string::npos && path.find("/dropin/") == std::string::npos;
  });
  return mapped || backend != "verbs" ? "libibverbs.so.1" : "";
}

// Members that find no device are restored, and fail then.
Status check_device(const std::string& library) {
  if (library.empty() || machine_has_adapter() || devices_found(library) != 0) return {};
  return Status::of(Code::kRefused, ENODEV,
                    "--backend verbs: %.150s finds no RDMA device here; use --backend ib2tcp (auto does), or see "
                    "shadowib doctor for what the adapter lacks",
                    library.c_str());
}

Status check_backend(const SetManifest& manifest, const LoadedImage& image, const std::string& wanted,
                     const std::string& verbs_library) {
  const bool automatic = wanted.empty() || wanted == "auto";
  if (wanted == "verbs" || (automatic && machine_has_adapter())) {
    if (!verbs_library.empty()) SHADOWIB_TRY(check_verbs_library(verbs_library));
    return check_device(verbs_library.empty() ? recorded_verbs_library(image, manifest.backend) : verbs_library);
  }
  const std::string library = backend_library(image);
  if ((!automatic && wanted != "ib2tcp") || library.empty() || ::access(library.c_str(), R_OK) == 0) return {};
  return Status::of(Code::kNotFound, errno,
                    "%.250s is not there; install shadowib where the members had it, or link that directory to where "
                    "it is",
                    library.c_str());
}

Status check_opened(const SetManifest& manifest, const OpenedSet& set, const std::string& wanted,
                    const std::string& verbs_library, Holders holders) {
  SHADOWIB_TRY(refusal_of_restart(set, machine_limits(), holders));
  return check_backend(manifest, set.members.front().image, wanted, verbs_library);
}

}  // namespace

Status check_set_here(const SetManifest& manifest, const std::set<std::uint32_t>& members, const std::string& wanted,
                      const std::string& verbs_library) {
  OpenedSet set;
  Status status = open_members(manifest, members, &set);
  if (status.ok()) status = check_opened(manifest, set, wanted, verbs_library, Holders::kNone);
  close_members(&set);
  return status;
}

Status check_set_in_recovery(const SetManifest& manifest, const std::string& wanted, const std::string& verbs_library,
                             bool lives) {
  OpenedSet set;
  Status status = open_members(manifest, {}, &set);
  if (status.ok()) status = judge_recovery(set);
  if (status.ok())
    status = check_opened(manifest, set, wanted, verbs_library, lives ? Holders::kMembers : Holders::kNone);
  close_members(&set);
  return status;
}

Findings examine_set(const Common& given_common, const std::string& given) {
  Common common = given_common;
  std::string path;
  SetManifest manifest;
  OpenedSet set;
  Status status = choose_set(&common, given, &path);
  if (status.ok()) status = read_manifest(path, &manifest);
  if (status.ok()) status = open_members(manifest, {}, &set);
  Findings findings;
  if (!status.ok()) {
    findings.push_back({"images", Verdict::kRefused, status.text(), "see shadowib list, and shadowib verify SET"});
  } else {
    findings.push_back(
        {"images", Verdict::kOk,
         path + ": " + std::to_string(set.members.size()) + " (tables; shadowib verify reads every byte)", ""});
    if (const Status refused = judge_restart_of_clc(manifest); !refused.ok())
      findings.push_back({"cluster", Verdict::kRefused, refused.text(), "restart a set of the whole job"});
    findings.push_back(job_free(common, manifest.job));
    findings.push_back(judge_backend(manifest.backend, environment("BACKEND"), machine_has_adapter(),
                                     backend_library(set.members.front().image)));
    for (const RehearsedStep& step : rehearse_restart(set, machine_limits())) findings.push_back(judge_step(step));
  }
  close_members(&set);
  return findings;
}

}  // namespace shadowib::cli
