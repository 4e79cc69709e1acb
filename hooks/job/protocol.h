// Keys and values by which the checkpoint command and the agents talk, all through the exchange, under the job's
// epoch. Values are lines "name=value\n". Unknown names are ignored. `protocol=1` comes first; another is refused.
//
// The job and its members:
//
// `<epoch>/member/<index>`     Claimed on joining. Fields: protocol pid starttime host comm exe version meets.
//                              `expects=N`: run --processes.
//                              `meets=5`: comes to the barriers and keys below. Another number is another way.
//                              `cluster=NAME cluster_index=I`: it is in a cluster (cluster.h).
// `<epoch>/gone/<index>`       Published on a member's orderly exit.
// `<epoch>/guest/<number>`     Claimed by a guest (agent/guest.h). Fields as of a member.
// `<epoch>/guests`             Exists once the epoch has had a guest.
// `<epoch>/control/end`        `why=TEXT`: the job is over, guests end.
// `<epoch>/value/<name>`       A value of the program's (agent/values.h).
// `<epoch>/control/checkpoint` The latest request: `n= members=0,1,2 staging=PATH set=<32 hex> timeout_ms= kill=0|1`.
//                              `last=0|1 keepers=0|1 save=forked|stopped weighs=0|1`. `near=PLACE` if images stay
//                              near. `incremental=1 base=PATH`: of the set that has pages, if there is one.
//                              `compress=lz4|zstd`: pages of images are to be compressed.
//                              `mem_place=PATH disk_place=PATH` if the command has yet to choose the place.
// `<epoch>/control/status`     `n`: agents answer with the next `<epoch>/status/<n>/<index>`, a JSON object.
// `<epoch>/control/abort`      A rank asks for the end of a job that has no launcher (launcher/board.h).
//                              Or, with `everyone=1 text=`: a supervisor wants all members to end at once.
// `<epoch>/control/event`      Changes with each event of a rank, in a job that has no launcher (the same).
// `<epoch>/control/died`       `member=I how=TEXT`. A restart command publishes the member that has ended badly.
//
// A checkpoint. Each key begins with `<epoch>/ckpt/<n>/`:
//
// `phase/<index>`              `phase=10`: the member has the request. Its later phases show at the barriers.
// `save/<index>`               `forked=1`, before `fds`, if the request says `save=forked`.
//                              `host= needs= free= group= bytes=`: memory that it may take meanwhile, what its host
//                              has free, or the cgroup that has less, and the most that its image takes, if the
//                              request says `weighs=1`. The member comes to barriers 65.all and 65.
// `near/<index>`               `host=<base/this_host.h> domain=`, before `fds`, if images stay near.
//                              `bytes= mem= disk=` if the command has yet to choose the place.
// `keeper/<host>`              Claimed by the member that starts the host's keeper.
// `files/<index>`              Lines `<build-id hex or -> <path>` of the member's mapped files.
// `fds/<index>`                The member's descriptor table (imager/descriptors.h).
// `memory/<index>`             A member's duty: what it saves of memory it shares (imager/shared_memory.h), and the
//                              files that it compares (imager/descriptors.h).
// `go`                         Published by the command after matching the tables.
//                              `stand=0,1,2`: members that have no saver for want of memory, if the request weighs.
// `saved/<index>`              `image=FILE generation= backend= bytes=N xxh3=<32 hex>`.
//                              `settle_ns= save_ns= stopped_ns=`.
//                              `phases="join=NS hooks=NS ..." objects="contexts=N queue_pairs=N ..."`.
//                              `save=forked|stopped why_stopped=TEXT`, if the request says `save=forked`.
//                              `incremental=1 packs="<set id>=BYTES ..." borrowed=BYTES why_whole=TEXT`.
//                              `compress=lz4|zstd page_bytes=N`: as asked for; N before that.
// `fail/<index>`               `code=<Code> errno= text=`.
// `fail/command`               As above, of the command. `again=1` if it tries once more.
// `abort`                      Published by the first that gives up: its reason.
// `told`                       The member that tells people of it, if one does.
// `outcome`                    `committed=PATH kill=0|1`, or `aborted=TEXT`.
// `done/<index>`               The member has resumed.
// `b/<phase>`                  The barrier of that phase, to which the member comes (Exchange::barrier).
// `again/<try>`                `MEMBER REASON` of the first member that does not settle in that try.
// `s/<try>/...`                Keys of Participant::settle in its try (SettleContext::prefix).
// `launcher/ranks/<namespace>/<rank>`
//                              A launcher's rank takes part (launcher/launcher.h).
//
// A restart. Each key begins with `<epoch>/restart/`. If clusters come back in their epoch, it begins with
// `<epoch>/recovery/<r>/restart/` (recovery.h).
//
// `members`                    `NEXT I I ...`: the members that come back, after the first index above them.
// `started/<index>`            The name of the lock of a share: a restart command has the member in that share.
// `meet/<name>`                The place where a part of a restart awaits connections of others (restore_apart.cc).
// `phase/<index>`              `phase=140`: a restarted member is ready to go, and waits for `cut/<index>`.
// `cut/<index>`                Published by a restart command: files are rolled back, the member may go.
// `done/<index>`               A restarted member has passed fault point 145: its threads run.
// `fail/<index>`               `code= errno= text=`. The member's restart has failed, and it exits.
//
// Liveness is on the file system, not in the exchange. Each member holds an exclusive lock of its open file
// `<directory>/jobs/<job>/alive/<epoch>.<index>`, a guest of `<epoch>.g<number>`. The command holds one on
// `<epoch>.ckpt<n>` beside it. So a death is seen at once, across pid namespaces. A free lock means dead. The file
// says whether the member had left (member_record.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "hooks/job/job_directory.h"
#include "shadowib/base/status.h"

namespace shadowib {

inline constexpr int kProtocolVersion = 1;
// How members meet each other. Commands speak with members of any; members of one checkpoint have the same.
inline constexpr int kMeetingVersion = 5;
// From this one on members of clusters tell of their connections to other clusters (recovery.h).
inline constexpr int kFirstTellsWiring = 5;

using Fields = std::map<std::string, std::string>;
std::string encode_fields(const Fields& fields);            // protocol=1 first; newlines in values become spaces
bool decode_fields(std::string_view text, Fields* fields);  // false: no or another protocol

// Guests share a job's network and are in none of its checkpoints. Guest n of an epoch has this index plus n.
inline constexpr std::uint32_t kFirstGuest = 1u << 20;
constexpr bool is_guest_index(std::uint32_t index) { return index >= kFirstGuest; }
// The name of a process's lock behind "<epoch>.": "3" of member 3, "g3" of guest 3.
std::string lock_name(std::uint32_t index);
// True if a file below alive/ is a guest's.
bool is_guest_lock(std::string_view file);

std::string guest_key(std::string_view epoch, std::uint32_t number);
std::string end_key(std::string_view epoch);
std::string member_key(std::string_view epoch, std::uint32_t index);
std::string death_key(std::string_view epoch);
// Where the keys of a restart begin, with a '/' at the end. `recovery` 0: of the whole job, in an epoch of its own.
std::string restart_prefix(std::string_view epoch, std::uint64_t recovery);
std::string reserved_members_key(std::string_view epoch);
std::string encode_reserved_members(const std::set<std::uint32_t>& members);
std::set<std::uint32_t> decode_reserved_members(const std::string& value);
std::string checkpoint_key(std::string_view epoch, std::uint64_t n, std::string_view rest);
// Takes the lock (F_OFD_SETLK; creating file and directories, 0600/0700); returns an owned descriptor or -1 with
// errno (EAGAIN: somebody alive holds it).
int hold_alive_lock(const std::string& path);
// Gives the lock up and closes the descriptor. Closing alone leaves it to processes forked meanwhile.
void release_alive_lock(int fd);
// From now on the lock lasts as long as the process's memory, whoever closes its descriptor. No child inherits it.
void tie_alive_lock_to_memory(int fd);
// True if somebody holds it, and if that cannot be known (no descriptor left, a file server that does not answer):
// who takes a holder for dead removes what is its.
bool is_alive(const std::string& path);

// A field's value; 0 or empty if there is none of that name.
std::uint64_t field_number(const Fields& fields, const char* name);
const std::string& field_text(const Fields& fields, const char* name);
// A Status as the fields code, errno and text.
Status status_from_fields(const Fields& fields);
Fields fields_of_status(const Status& status);

}  // namespace shadowib
