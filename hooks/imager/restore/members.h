// The images of a set, opened for a restart.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/restore/image_memory.h"
#include "hooks/imager/restore/namespaces.h"
#include "hooks/imager/restore/process_tree.h"

namespace shadowib {

struct MemberImage {
  LoadedImage image;
  int fd;
  std::string path;
  std::vector<MemoryPatch> patches = {};  // for the processor it is restarted on
};

// The numbers of a member that is not to be restarted here.
struct MemberElsewhere {
  std::uint32_t member;
  std::int32_t pid, group;
};

struct OpenedSet {
  std::vector<MemberImage> members;             // those to be restarted here, in the manifest's order
  std::vector<MemberElsewhere> elsewhere;       // all others
  std::map<std::uint32_t, std::string> tables;  // descriptor tables of all members that have one
};

// Opens a near set as if all members were elsewhere: its images lie on several hosts, but its tables in the set's
// directory. kCorrupt.
Status open_tables(const SetManifest& manifest, OpenedSet* set);

// The images of `chosen` members (none: of all), their tables and not their pages; of the others only the
// descriptors. kNotFound, kCorrupt, kVersion. Opened files are in *set also on failure.
Status open_members(const SetManifest& manifest, const std::set<std::uint32_t>& chosen, OpenedSet* set);
// Judges a set that is to come back in its job's epoch, while other clusters run on. kVersion: a library in an image
// does not know of that.
Status judge_recovery(const OpenedSet& set);
void close_members(OpenedSet* set);

// Members that share a pid namespace, in which their numbers are to be had together.
using RestartPart = std::vector<const MemberImage*>;
Status split(const OpenedSet& set, std::vector<RestartPart>* parts);

// Where a member's process belongs, among those of its part. kCorrupt: the image and its table do not agree.
Status place_of(const MemberImage& member, const std::map<std::uint32_t, Family>& families, PlacedProcess* placed);

std::set<std::uint32_t> indices_of(const RestartPart& part);

// The latest that any member's clocks have shown.
ClockFloor clock_floor(const RestartPart& part);

}  // namespace shadowib
