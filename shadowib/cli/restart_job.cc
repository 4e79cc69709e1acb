// What all kinds of restart need: the words for members, and the images.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "hooks/job/members.h"
#include "shadowib/cli/far_fetch.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

template <std::size_t N>
Status copy_text(const std::string& from, const char* what, char (&to)[N]) {
  if (from.size() >= N) return Status::of(Code::kUsage, ENAMETOOLONG, "%s has more than %zu bytes", what, N - 1);
  std::memcpy(to, from.c_str(), from.size() + 1);
  return {};
}

// A near image that is not here, or damaged, comes from another host's copy, or is decoded from parities.
Status verify_near(const RestartArguments& arguments, const std::set<std::uint32_t>& members, SetManifest* manifest) {
  const std::string path = manifest->path, &directory = arguments.common.directory;
  // A copy is looked for before anything is made, so what is redundant is verified whole.
  if (!manifest->placement.store.is_redundant())
    return verify_with_progress(path, manifest, members,
                                arguments.far.far.empty() ? VerifyDepth::kForRestart : VerifyDepth::kEverything);
  SHADOWIB_TRY(ensure_keeper(directory, manifest->job, arguments.network));
  SHADOWIB_TRY(gather_images(directory, *manifest, members, false));
  const Status status = verify_with_progress(path, manifest, members);
  if (status.code() != Code::kCorrupt) return status;
  std::fprintf(stderr, "shadowib: %s; looking for a copy\n", status.text());
  SHADOWIB_TRY(gather_images(directory, *manifest, members, true));
  return verify_with_progress(path, manifest, members);
}

}  // namespace

std::string verbs_library() {
  const std::string file = environment("IBVERBS");
  if (file.find('/') == std::string::npos) return file;
  std::error_code error;
  return std::filesystem::absolute(file, error).lexically_normal().string();
}

std::string wanted_backend(const RestartArguments& arguments) {
  return arguments.backend.empty() ? environment("BACKEND") : arguments.backend;
}

Status fill_job(const RestartArguments& arguments, const SetManifest& manifest, const std::string& exchange,
                const std::string& epoch, JobInfo* info) {
  *info = {};
  const std::string backend = wanted_backend(arguments);
  info->generation = manifest.generation + 1;
  info->step_ms = static_cast<std::uint32_t>(arguments.timeout_s) * 1000;
  info->member_count = static_cast<std::uint32_t>(manifest.members.size());
  SHADOWIB_TRY(copy_text(manifest.job, "the job's name", info->job));
  SHADOWIB_TRY(copy_text(arguments.common.directory, "--dir", info->directory));
  SHADOWIB_TRY(copy_text(exchange, "--exchange", info->exchange));
  SHADOWIB_TRY(copy_text(backend.empty() ? "auto" : backend, "--backend", info->backend));
  SHADOWIB_TRY(copy_text(epoch, "the epoch", info->epoch));
  SHADOWIB_TRY(copy_text(environment("LOG"), "SHADOWIB_LOG", info->log));
  SHADOWIB_TRY(copy_text(verbs_library(), "SHADOWIB_IBVERBS", info->verbs_library));
  SHADOWIB_TRY(copy_text(environment("FAULT"), "SHADOWIB_FAULT", info->fault));
  SHADOWIB_TRY(copy_text(arguments.network, "--network", info->ib2tcp_network));
  if (arguments.part.number != 0) {
    info->generation = arguments.part.generation;
    info->member_count = arguments.part.members;
    info->recovery = static_cast<std::uint32_t>(arguments.part.number);
  }
  return copy_text(environment("IB2TCP_TRANSPORT"), "SHADOWIB_IB2TCP_TRANSPORT", info->ib2tcp_transport);
}

// What neither this host nor another one has may be in the far place.
Status verify_here(const RestartArguments& arguments, const std::set<std::uint32_t>& members, SetManifest* manifest) {
  const Status status = verify_near(arguments, members, manifest);
  if (status.code() != Code::kNotFound && status.code() != Code::kCorrupt) return status;
  std::size_t fetched = 0;
  if (const Status far = fetch_images(arguments.common.directory, *manifest, members, arguments.far, &fetched);
      !far.ok()) {
    std::fprintf(stderr, "shadowib: %s\n", status.text());
    return far;
  }
  return fetched == 0 ? status : verify_with_progress(manifest->path, manifest, members);
}

Status failure_of(const std::string& exchange, const std::string& epoch, std::uint64_t recovery,
                  const std::vector<RestartedProcess>& processes) {
  const auto of_no_matter = [](const RestartedProcess& p) { return !p.left && ended_well(p); };
  if (std::all_of(processes.begin(), processes.end(), of_no_matter)) return {};
  std::vector<std::uint32_t> members;
  for (const RestartedProcess& p : processes) members.push_back(p.member);
  return failure_of_restart(exchange, epoch, recovery, members);
}

}  // namespace shadowib::cli
