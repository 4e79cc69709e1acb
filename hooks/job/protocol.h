// Keys and values by which the checkpoint command and the agents talk, all through the exchange, under the job's
// epoch. Values are lines "name=value\n"; unknown names are ignored; protocol=1 comes first and another number is
// refused.
//
//   <epoch>/member/<index>      claimed on joining: protocol pid starttime host comm exe version meets
//                               meets=3: comes to the barriers and keys below; another number is another way
//   <epoch>/gone/<index>        published on a member's orderly exit
//   <epoch>/control/checkpoint  the latest request: n members=0,1,2 staging=PATH set=<32 hex> timeout_ms kill=0|1
//   last=0|1 near=PLACE (images stay near) keepers=0|1 save=forked|stopped
//   <epoch>/control/status      n: agents answer with the next <epoch>/status/<n>/<index>  JSON object
//   <epoch>/ckpt/<n>/phase/<index>   phase=10: the member has the request. Its later phases show at the barriers
//   <epoch>/ckpt/<n>/fds/<index>     the member's descriptor table (imager/descriptors.h)
//   <epoch>/ckpt/<n>/memory/<index>  what a member that shares memory is to save of it (imager/shared_memory.h)
//   <epoch>/ckpt/<n>/go              published by the command after matching the tables
//   <epoch>/ckpt/<n>/saved/<index>   image=FILE generation backend bytes=N xxh3=<32 hex> settle_ns save_ns stopped_ns
//                                   phases="join=NS hooks=NS ..." objects="contexts=N queue_pairs=N ..."
//                                   save=forked|stopped why_stopped=TEXT, if the request says save=forked
//   <epoch>/ckpt/<n>/save/<index>    forked=1, before fds, if the request says save=forked: it comes to 65.all and 65
//   <epoch>/ckpt/<n>/near/<index>    host=<base/this_host.h> domain=, before fds, if images stay near
//   <epoch>/ckpt/<n>/keeper/<host>   claimed by the member that starts the host's keeper
//   <epoch>/ckpt/<n>/fail/<index>    code=<Code> errno= text=
//   <epoch>/ckpt/<n>/fail/command    the same of the command, and again=1 if it tries once more
//   <epoch>/ckpt/<n>/abort           published by whoever gives up: text
//   <epoch>/ckpt/<n>/outcome         committed=PATH kill=0|1, or aborted=TEXT
//   <epoch>/ckpt/<n>/b/<phase>       barrier of that phase (Exchange::barrier), to which the member comes
//   <epoch>/ckpt/<n>/again/<try>     "MEMBER REASON" of the first member that does not settle in that try
//   <epoch>/ckpt/<n>/s/<try>/...     keys of Participant::settle in its try (SettleContext::prefix)
//   <epoch>/ckpt/<n>/files/<index>   lines "<build-id hex or -> <path>" of the member's mapped files
//   <epoch>/ckpt/<n>/done/<index>    the member resumed
//   <epoch>/ckpt/<n>/launcher/ranks/<namespace>/<rank>   a launcher's rank takes part (launcher/launcher.h)
//   <epoch>/control/abort       a rank has asked for the end of the job, which has no launcher (launcher/board.h)
//   <epoch>/control/event       changes with each event that a rank tells others of, without a launcher (the same)
//   <epoch>/control/died        published by a restart command: member=I how=TEXT of a member that has ended badly
//   <epoch>/restart/members     "NEXT I I ...": the members that come back, after the first index above them
//   <epoch>/restart/started/<index>  a restart command has this member in its share: the name of the share's lock
//   <epoch>/restart/meet/<name>      where a part of a restart awaits connections of others (restore_apart.cc)
//   <epoch>/restart/phase/<index>    phase=140: a restarted member is ready to go, and waits for cut/<index>
//   <epoch>/restart/cut/<index>      published by a restart command: files are rolled back, the member may go
//   <epoch>/restart/done/<index>     a restarted member has passed fault point 140: its threads run
//   <epoch>/restart/fail/<index>     code= errno= text= : its restart failed, it exits
// Liveness, on the file system and not in the exchange: each member holds an exclusive lock (of its open file) on
//   <directory>/jobs/<job>/alive/<epoch>.<index>     and the command on  .../alive/<epoch>.ckpt<n>
// so that a death is seen at once, across pid namespaces. A free lock means dead.
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
inline constexpr int kMeetingVersion = 3;

using Fields = std::map<std::string, std::string>;
std::string encode_fields(const Fields& fields);            // protocol=1 first; newlines in values become spaces
bool decode_fields(std::string_view text, Fields* fields);  // false: no or another protocol

std::string member_key(std::string_view epoch, std::uint32_t index);
std::string death_key(std::string_view epoch);
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
// True if somebody holds it.
bool is_alive(const std::string& path);

// A field's value; 0 or empty if there is none of that name.
std::uint64_t field_number(const Fields& fields, const char* name);
const std::string& field_text(const Fields& fields, const char* name);
// A Status as the fields code, errno and text.
Status status_from_fields(const Fields& fields);
Fields fields_of_status(const Status& status);

}  // namespace shadowib
