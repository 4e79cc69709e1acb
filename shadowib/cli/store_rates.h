// How quick a job's transfers are, for --store auto: measured at its checkpoints, kept in the job's directory.
#pragma once

#include <string>

#include "hooks/command/coordinator.h"
#include "hooks/store/choice.h"

namespace shadowib::cli {

// A rate that nobody has measured is that of a usual cluster: 1 GB/s from host to host, 0.5 GB/s for a disk and for
// the checkpoint directory, 10 GB/s for a parity. Without a record, all are.
StoreRates read_rates(const std::string& directory, const std::string& job);

// The rates after a checkpoint: what it tells of moves them by a part. Small images tell nothing: they take as long
// as messages do. A compressed set tells how much smaller the next one will be.
StoreRates moved_by(const StoreRates& rates, const CheckpointReport& report);

// The record, and the file that has it.
std::string encode_rates(const StoreRates& rates);
std::string rates_path(const std::string& directory, const std::string& job);

}  // namespace shadowib::cli
