// shadowib doctor: what this machine offers, and what to do about what it does not.
#include <dlfcn.h>
#include <link.h>

#include <cerrno>
#include <filesystem>

#include "shadowib/cli/common.h"
#include "shadowib/cli/doctor_set.h"
#include "shadowib/cli/doctor_store.h"
#include "shadowib/cli/libraries.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/network.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace {

struct DoctorArguments {
  Common common;
  std::vector<std::string> sets, programs;
  StoreOptions store;
  bool brief = false;
};

constexpr char kDoctorExamples[] =
    "Examples:\n"
    "  shadowib doctor                      before the first checkpoint on a machine\n"
    "  shadowib doctor --brief              only what asks for attention\n"
    "  shadowib doctor --dir /scratch/ckpt  is that place good for sets?\n"
    "  shadowib doctor --set demo.0003      could it be restarted here?\n"
    "  shadowib doctor --store mem:mirror   could this host take images of that store?\n"
    "  shadowib doctor --program ./app      can that program be run under shadowib?\n\n"
    "Each line says ok, note (works, with a limit), missing or refused, with a remedy below. Exit code 9 if "
    "anything\n"
    "is missing, else 4 if a set, a program or a store would be refused.\n";

// The library itself behind a name: "libibverbs.so.1" -> ".../libibverbs.so.1.14.44.0", which tells its version.
std::string file_behind(void* handle, const std::string& name) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map->l_name[0] == '\0') return name;
  std::error_code error;
  return std::filesystem::weakly_canonical(map->l_name, error);
}

Finding system_libibverbs(bool wanted) {
  const std::string given = environment("IBVERBS"), name = given.empty() ? "libibverbs.so.1" : given;
  void* handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr)
    return {"system libibverbs", wanted ? Verdict::kMissing : Verdict::kNote, ::dlerror(),
            "needed by --backend verbs and by programs linked to it: apt install libibverbs1"};
  if (::dlsym(handle, "ibv_open_device") == nullptr)
    return {"system libibverbs", Verdict::kMissing, file_behind(handle, name) + " exports no ibv_open_device",
            "name a verbs library with SHADOWIB_IBVERBS, or unset it"};
  return {"system libibverbs", Verdict::kOk, file_behind(handle, name), ""};
}

Findings installation() {
  Findings findings;
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
  findings.push_back(system_libibverbs(environment("BACKEND") == "verbs"));
  return findings;
}

// What is told: findings of the machine, then of each set and program named.
class Report {
 public:
  // Brief: what is ok is counted, not told.
  Report(bool json, bool brief) : json_(json), brief_(brief) {}

  void add(const std::string& subject, const Findings& findings) {
    static const char* const kWords[] = {"ok", "note", "missing", "refused"};
    if (!json_ && !subject.empty()) std::printf("%s%s\n", brief_ ? "" : "\n", subject.c_str());
    for (const Finding& f : findings) {
      const char* word = kWords[static_cast<int>(f.verdict)];
      missing_ = missing_ || f.verdict == Verdict::kMissing;
      refused_ = refused_ || f.verdict == Verdict::kRefused;
      list_.push_back(
          {{"subject", subject}, {"what", f.what}, {"verdict", word}, {"detail", f.detail}, {"remedy", f.remedy}});
      fine_ += f.verdict == Verdict::kOk;
      if (json_ || (brief_ && f.verdict == Verdict::kOk)) continue;
      std::printf("%-8s %-21s %s\n", word, f.what.c_str(), f.detail.c_str());
      if (!f.remedy.empty()) std::printf("%-8s %-21s -> %s\n", "", "", f.remedy.c_str());
    }
  }

  int finish() const {
    if (brief_ && !json_) std::printf("%-8s %u other things\n", "ok", fine_);
    if (json_) print_json({{"ok", !missing_ && !refused_}, {"findings", list_}});
    return static_cast<int>(missing_ ? Code::kPermission : refused_ ? Code::kRefused : Code::kOk);
  }

 private:
  const bool json_, brief_;
  bool missing_ = false, refused_ = false;
  unsigned fine_ = 0;
  Json list_ = Json::array();
};

int doctor(DoctorArguments& arguments) {
  Common& common = arguments.common;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  Findings of_store;
  if (arguments.store.store.empty() && !arguments.store.near.empty())
    return fail(common, Status(Code::kUsage, EINVAL, "--near goes with --store: name the store, too"));
  if (!arguments.store.store.empty())
    if (Status s = examine_store(arguments.store, common, &of_store); !s.ok()) return fail(common, s);
  Report report(common.json, arguments.brief);
  const Places places;
  for (const Findings& part :
       {examine_kernel(places), installation(), examine_restart(), examine_storage(common.directory, common.exchange),
        examine_devices(places), examine_transports(environment("IB2TCP_TRANSPORT")),
        Findings{examine_network(environment("IB2TCP_NETWORK"))}})
    report.add("", part);
  if (!arguments.store.store.empty()) report.add("store " + arguments.store.store, of_store);
  for (const std::string& set : arguments.sets) report.add("set " + set, examine_set(common, set));
  for (const std::string& program : arguments.programs) report.add("program " + program, examine_program(program));
  return report.finish();
}

}  // namespace

void add_doctor(Command& program) {
  auto arguments = std::make_shared<DoctorArguments>();
  Command* command = program.add_subcommand("doctor", "Tell what this machine offers, with remedies");
  command
      ->add_option("--set", arguments->sets,
                   "A set to judge, by its path or name: whether it could be restarted on this machine")
      ->type_name("SET")
      ->completed_by(kSetNames);
  command
      ->add_option("--program", arguments->programs,
                   "A program to judge: whether it can be run under shadowib, and uses an adapter past libibverbs")
      ->type_name("FILE");
  command
      ->add_option("--store", arguments->store.store,
                   "A store to judge, as --store of run takes it: whether this host could\ntake its images")
      ->not_empty("a store")
      ->type_name("STORE");
  command
      ->add_option("--near", arguments->store.near,
                   "The directory for its images; default $SHADOWIB_NEAR, else /dev/shm\nfor mem: and /var/tmp for "
                   "disk:. With auto, one for what it lies on")
      ->not_empty("a directory")
      ->type_name("PLACE");
  command->add_flag("--brief", arguments->brief, "Only what is not ok, and how many things are");
  add_common(command, &arguments->common);
  command->footer(kDoctorExamples);
  command->callback([arguments] { return doctor(*arguments); });
}

}  // namespace shadowib::cli
