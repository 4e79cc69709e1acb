// Jobs of portable programs (libraries/portable). They run without the shim, and are saved at sites. Any architecture
// restarts them.
//
// <job>/portable/ holds `request`, which the job's processes map, and member-N.json: how each was started. A process
// holds the lock of its member from exec to its end. docs/internals/portable-images.md has the forms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/json_value.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

// <directory>/jobs/<job>/portable.
std::string portable_path(const std::string& directory, const std::string& job);
// True if the job's processes were started by `run --portable`.
bool is_portable_job(const std::string& directory, const std::string& job);
// Before a job of that name starts under the shim.
void forget_portable_job(const std::string& directory, const std::string& job);

// How a process of such a job starts.
struct PortableStart {
  std::string job;
  int member = -1;                   // -1: the least that is free
  std::string from;                  // an image; empty: the program's begin
  std::vector<std::string> runners;  // ARCHITECTURE=COMMAND
  std::vector<std::string> among;    // programs of a BSP job, of which each host runs those it can; empty: one alone
  Arguments command;
};
// Becomes the program. Returns an exit code of `run` if that cannot be.
int run_portable(Common& common, const PortableStart& start);

// The members that live, by index.
struct PortableMember {
  std::uint32_t index;
  std::string lock;  // its path
};
std::vector<PortableMember> portable_members(const std::string& directory, const std::string& job);
// Reads member-N.json: pid, host, comm, directory, command. Call it once the process has answered: one that has
// just taken its lock may not have replaced the file of an earlier one. kIo.
Status portable_facts(const std::string& directory, const std::string& job, std::uint32_t member, Json* facts);

// The request that all processes of a job map.
class PortableRequest {
 public:
  ~PortableRequest();
  // Makes the file if there is none.
  Status open(const std::string& directory, const std::string& job);
  // Asks `members` ("0-3,7") to save into `staging` at their next sites. `lock` is held by the calling process
  // meanwhile. *id names the request, in the names of answers. kUsage: the text is too long.
  Status ask(const std::string& staging, const std::string& lock, const std::string& set, bool kill,
             const std::string& members, std::string* id);
  // Committed: processes that were asked to end do. Withdrawn: all go on.
  void decide(bool committed);

 private:
  void show();

  unsigned char* memory_ = nullptr;
};

}  // namespace shadowib::cli
