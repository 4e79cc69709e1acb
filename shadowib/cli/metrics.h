// A job's figures in the text format of Prometheus, for node_exporter's textfile collector and others that read
// files.
#pragma once

#include <string>
#include <vector>

#include "shadowib/cli/history.h"

namespace shadowib::cli {

// From a job's history. `now_ms`: since 1970.
std::string metrics_text(const std::string& job, const std::vector<PastEvent>& events, std::int64_t now_ms);

// Reads the history of the job and puts the file in place by a rename: who reads it never sees half of it. A history
// that is empty makes a file of zeros. kIo.
Status write_metrics(const std::string& file, const std::string& directory, const std::string& job);

// write_metrics, and tells on standard error if that fails. An empty `file` is none.
void keep_metrics(const std::string& file, const std::string& directory, const std::string& job);

}  // namespace shadowib::cli
