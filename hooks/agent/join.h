// Joining a job: its directories, its epoch, an index of one's own.
#pragma once

#include <cstdint>
#include <string>

#include "hooks/job/job_info.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// Where the job is, from the environment.
Status fill_job_info(JobInfo* info);
// The job's present epoch. kNotFound: it has none yet.
Status read_epoch(const JobInfo& info, std::string* epoch);
// Takes an epoch over, with its generation. kCorrupt names the file.
Status take_epoch(const std::string& epoch, JobInfo* info);
// Makes the job's directories, finds or starts its epoch and takes an index: claims the member key and holds the lock
// (*alive_lock). *last_request, *last_status: the latest requests made before this member could be meant.
Status enter_job(JobInfo* info, Exchange** exchange, int* alive_lock, std::uint64_t* last_request,
                 std::uint64_t* last_status);
std::string describe_member();                     // the fields of the member key
void record_member(const std::string& lock_path);  // that this process has joined (job/member_record.h)
Status publish_fields(const std::string& key, const Fields& fields);
// The numbers of the latest requests; 0 if none.
std::uint64_t latest_request(Exchange* exchange, const char* epoch, const char* name);
struct RequestNumber {
  const char* name;
  std::uint64_t* number;
};
void look_up_requests(Exchange* exchange, const char* epoch, std::initializer_list<RequestNumber> requests);

}  // namespace shadowib
