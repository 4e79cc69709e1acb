// shadowib doctor: what this machine offers, and what to do about what it does not.
#include <dlfcn.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>

#include "hooks/imager/set/set_files.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/libraries.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/output.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  shadowib doctor                      before the first checkpoint on a machine\n"
    "  shadowib doctor --dir /scratch/ckpt  is that place good for sets?\n\n"
    "Each line says ok, note (works, with a limit) or missing, with a remedy below. Exit code 9 if anything is "
    "missing.\n";

Finding kernel() {
  utsname name{};
  ::uname(&name);
  return {"kernel", Verdict::kOk, std::string(name.sysname) + " " + name.release + " " + name.machine, ""};
}

std::vector<Finding> installation() {
  std::vector<Finding> findings;
  Libraries libraries;
  Status found = find_libraries(&libraries);
  if (!found.ok())
    findings.push_back({"libshadowib.so", Verdict::kMissing, found.text(), "build or install shadowib completely"});
  else
    findings.push_back({"libshadowib.so", Verdict::kOk, libraries.preload, ""});
  findings.push_back(libraries.ib2tcp.empty() ? Finding{"ib2tcp backend", Verdict::kMissing, "not beside the library",
                                                        "build or install shadowib completely"}
                                              : Finding{"ib2tcp backend", Verdict::kOk, libraries.ib2tcp, ""});
  findings.push_back(libraries.dropin.empty()
                         ? Finding{"drop-in directory", Verdict::kNote, "absent",
                                   "programs that dlopen libibverbs are not seen; install shadowib completely"}
                         : Finding{"drop-in directory", Verdict::kOk, libraries.dropin, ""});
  std::string verbs = environment("IBVERBS").empty() ? "libibverbs.so.1" : environment("IBVERBS");
  findings.push_back(
      ::dlopen(verbs.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr
          ? Finding{"system libibverbs", Verdict::kOk, verbs, ""}
          : Finding{"system libibverbs", Verdict::kNote, ::dlerror(),
                    "needed by --backend verbs and by programs linked to it: apt install libibverbs1"});
  return findings;
}

// Tries what a checkpoint does there: a directory, a synced file, a rename, and the exchange.
std::vector<Finding> storage(const Common& common) {
  std::vector<Finding> findings;
  const std::string probe = common.directory + "/.doctor-" + random_hex(4);
  std::error_code error;
  const bool existed = std::filesystem::exists(common.directory, error);
  Status status = ensure_directory(common.directory);
  if (status.ok()) status = write_new_file(probe, "probe");
  if (status.ok()) status = sync_path(common.directory);
  ::unlink(probe.c_str());
  struct statvfs space {};
  ::statvfs(common.directory.c_str(), &space);
  std::string room = human_bytes(std::uint64_t{space.f_bavail} * space.f_frsize) + " free";
  findings.push_back(status.ok() ? Finding{"checkpoint directory", Verdict::kOk, common.directory + ", " + room, ""}
                                 : Finding{"checkpoint directory", Verdict::kMissing, status.text(),
                                           "name a directory you may write to with --dir or SHADOWIB_DIR"});
  const std::string uri = !common.exchange.empty() ? common.exchange : "dir:" + probe + "-x";
  std::unique_ptr<Exchange> exchange;
  std::string value;
  bool there = false;
  const std::string key = "doctor/" + random_hex(8);
  status = Exchange::open(uri, true, &exchange);
  if (status.ok()) status = exchange->publish(key, "probe");
  if (status.ok()) status = exchange->get(key, &value, &there);
  if (status.ok()) status = exchange->barrier(key + "-barrier", "doctor", 1, 1000, "");
  if (status.ok() && (!there || value != "probe"))
    status = Status(Code::kIo, 0, "a published value was not found again");
  if (exchange != nullptr) (void)exchange->remove(key);
  exchange.reset();
  if (common.exchange.empty()) std::filesystem::remove_all(probe + "-x", error);
  if (!existed) ::rmdir(common.directory.c_str());
  findings.push_back(status.ok()
                         ? Finding{"exchange", Verdict::kOk, common.exchange.empty() ? "dir: works there" : uri, ""}
                         : Finding{"exchange", Verdict::kMissing, status.text(), "name another with --exchange"});
  return findings;
}

int doctor(Common& common) {
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  std::vector<Finding> findings{kernel()};
  for (auto part : {installation(), examine_restart(), storage(common), examine_devices()})
    findings.insert(findings.end(), part.begin(), part.end());
  static const char* const kWords[] = {"ok", "note", "missing"};
  bool good = true;
  Json list = Json::array();
  for (const Finding& f : findings) {
    const char* word = kWords[static_cast<int>(f.verdict)];
    good = good && f.verdict != Verdict::kMissing;
    list.push_back({{"what", f.what}, {"verdict", word}, {"detail", f.detail}, {"remedy", f.remedy}});
    if (common.json) continue;
    std::printf("%-8s %-21s %s\n", word, f.what.c_str(), f.detail.c_str());
    if (!f.remedy.empty()) std::printf("%-8s %-21s -> %s\n", "", "", f.remedy.c_str());
  }
  if (common.json) print_json({{"ok", good}, {"findings", list}});
  return good ? 0 : static_cast<int>(Code::kPermission);
}

}  // namespace

void add_doctor(CLI::App& app, int* exit_code) {
  auto common = std::make_shared<Common>();
  CLI::App* command = app.add_subcommand("doctor", "Tell what this machine offers, with remedies");
  add_common(command, common.get());
  command->footer(kExamples);
  command->callback([common, exit_code] { *exit_code = doctor(*common); });
}

}  // namespace shadowib::cli
