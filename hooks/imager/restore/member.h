// Turning a fresh child of the supervisor into a process of the image.
#pragma once

#include "hooks/imager/descriptors.h"
#include "hooks/imager/restore/image_memory.h"
#include "hooks/imager/restore/shared_memory.h"
#include "hooks/imager/restore/system_v.h"
#include "hooks/imager/restorer/restorer_args.h"
#include "hooks/job/job_info.h"

namespace shadowib {

struct MemberStart {
  const LoadedImage* image;
  const JobInfo* job;
  DescriptorPlan* plan;  // nullptr: the image holds no descriptors, those at hand are kept
  const SharedMemoryPlan* memory;
  const SystemVPlan* system_v;
  const std::vector<MemoryPatch>* patches;
  int image_fd, status_fd, go_fd;
  int stream_fd;           // of compressed pages (page_stream.h); -1: there are none
  bool numbers_are_given;  // by who reads status_fd: RestoreStep::kNumber
};

// Runs in the child, whose pid is already the recorded one. Does what ordinary code can do, then jumps into the
// restorer. Every failure is told through status_fd.
[[noreturn]] void become_member(const MemberStart& start);

// The text of a report, for people.
Status report_status(const RestoreReport& report, const LoadedImage& image);

}  // namespace shadowib
