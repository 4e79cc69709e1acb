#include "shadowib/cli/store_options.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "hooks/store/near_place.h"
#include "shadowib/cli/jobs.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kMostSurvive = 8;

std::string absolute(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error).lexically_normal();
  if (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();
  return whole;
}

std::string record_path(const std::string& directory, const std::string& job) {
  return job_paths(directory, job).top + "/store";
}

struct Record {
  std::string store, place, survive;
};

Status read_record(const std::string& directory, const std::string& job, Record* record) {
  std::string text;
  Fields fields;
  const Status status = read_file(record_path(directory, job), &text);
  if (status.error() == ENOENT || status.error() == ENOTDIR) return {};
  SHADOWIB_TRY(status);
  if (!decode_fields(text, &fields))
    return Status::of(Code::kVersion, 0, "%.250s is of another shadowib; name the store with --store",
                      record_path(directory, job).c_str());
  *record = {field_text(fields, "store"), field_text(fields, "near"), field_text(fields, "survive")};
  return {};
}

// -1: it is none.
int survive_in(const std::string& text) {
  return text.size() == 1 && text[0] >= '0' && text[0] < '0' + kMostSurvive ? text[0] - '0' : -1;
}

Status take_survive(const StoreOptions& options, const std::string& recorded, const std::string& job,
                    ChosenStore* chosen) {
  const std::string variable = variable_of("SURVIVE", job);
  if (options.survive >= 0)
    chosen->survive = options.survive;
  else if (!variable.empty() && (chosen->survive = survive_in(variable)) < 0)
    return Status::of(Code::kUsage, EINVAL, "SHADOWIB_SURVIVE=%.40s is no number of hosts from 0 to %d",
                      variable.c_str(), kMostSurvive - 1);
  else if (variable.empty() && survive_in(recorded) >= 0)
    chosen->survive = survive_in(recorded);
  return {};
}

// Whether the place that a job was started with is one for that store, too: of the same kind, memory or disk.
bool serves(const Record& record, const ChosenStore& chosen) {
  if (record.place.empty() || chosen.automatic) return !record.place.empty();
  StoreSpec started;
  if (record.store != kAutoStore) return parse_store(record.store, &started).ok() && started.tier == chosen.spec.tier;
  bool in_memory = false;
  return is_in_memory(record.place, &in_memory).ok() && in_memory == (chosen.spec.tier == Tier::kMem);
}

}  // namespace

void add_store_options(Command* command, StoreOptions* options) {
  command
      ->add_option(
          "--store", options->store,
          "Where images lie: central (in DIR), mem:SCHEME (in memory of each\nhost), disk:SCHEME (on each host's "
          "disk), "
          "or auto: the quickest with\nroom at each checkpoint. SCHEME is single; mirror: a copy of each on\nanother "
          "host; xor or rs:M: parities in groups of hosts, of which any\nhost, or any M, may be lost. Default "
          "$SHADOWIB_STORE, else as the job\nwas started, else central")
      ->not_empty("a store")
      ->type_name("STORE");
  command
      ->add_option(
          "--near", options->near,
          "The directory for mem: and disk:, the same on every host;\ndefault $SHADOWIB_NEAR, else as the "
          "job was started,\nelse /dev/shm for mem: and /var/tmp for disk:. With auto, one for\nwhat it lies on")
      ->not_empty("a directory")
      ->type_name("PLACE");
  command
      ->add_option("--survive", options->survive,
                   "With --store auto: any M hosts may be lost for good; default\n$SHADOWIB_SURVIVE, else as the job "
                   "was started, else 1")
      ->between(0, kMostSurvive - 1, "hosts")
      ->type_name("M");
}

Status recorded_store(const std::string& directory, const std::string& job, std::string* store, std::string* place) {
  Record record;
  SHADOWIB_TRY(read_record(directory, job, &record));
  *store = record.store;
  *place = record.place;
  return {};
}

Status choose_store(const StoreOptions& options, const std::string& directory, const std::string& job,
                    ChosenStore* chosen) {
  *chosen = {};
  Record record;
  const Status recorded = read_record(directory, job, &record);
  std::string store = options.store;
  const std::string store_variable = variable_of("STORE", job), near_variable = variable_of("NEAR", job);
  const bool from_variable = store.empty() && !store_variable.empty();
  if (store.empty()) store = store_variable;
  const bool as_started = store.empty();
  if (as_started) {
    SHADOWIB_TRY(recorded);
    store = record.store.empty() ? "central" : record.store;
  }
  chosen->automatic = store == kAutoStore;
  if (const Status status = chosen->automatic ? Status() : parse_store(store, &chosen->spec); !status.ok())
    return from_variable ? Status::of(Code::kUsage, EINVAL, "SHADOWIB_STORE: %.300s", status.text()) : status;
  if (options.survive >= 0 && !chosen->automatic)
    return Status::of(Code::kUsage, EINVAL,
                      "--survive %d goes with --store auto; store %s survives what its scheme says", options.survive,
                      chosen->text().c_str());
  if (chosen->automatic) SHADOWIB_TRY(take_survive(options, record.survive, job, chosen));
  if (chosen->is_central()) {
    if (options.near.empty()) return {};
    return Status::of(Code::kUsage, EINVAL,
                      "--near %.100s: images of store central lie in DIR; use --store mem: or "
                      "disk: with it",
                      options.near.c_str());
  }
  std::string& place = chosen->place;
  place = options.near;
  if (place.empty() && !as_started) place = near_variable;
  if (place.empty() && serves(record, *chosen)) place = record.place;
  if (place.empty() && as_started) place = near_variable;
  if (place.empty() && !chosen->automatic) place = default_near_place(chosen->spec.tier);
  if (!place.empty()) place = absolute(place);
  if (place.size() > 800)
    return Status::of(Code::kUsage, ENAMETOOLONG, "--near has %zu bytes, at most 800 can be used", place.size());
  return {};
}

Status places_of(const ChosenStore& chosen, std::string* mem, std::string* disk) {
  *mem = default_near_place(Tier::kMem);
  *disk = default_near_place(Tier::kDisk);
  if (chosen.place.empty()) return {};
  bool in_memory = false;
  SHADOWIB_TRY(is_in_memory(chosen.place, &in_memory));
  *(in_memory ? mem : disk) = chosen.place;
  return {};
}

Status check_store_here(const ChosenStore& chosen) {
  std::string mem, disk;
  if (chosen.automatic) return places_of(chosen, &mem, &disk);
  return chosen.spec.is_near() ? check_near_place(chosen.spec, chosen.place) : Status();
}

void export_store(const ChosenStore& chosen) {
  for (const char* name : {"SHADOWIB_STORE", "SHADOWIB_NEAR", "SHADOWIB_SURVIVE"}) ::unsetenv(name);
  if (chosen.is_central()) return;
  ::setenv("SHADOWIB_STORE", chosen.text().c_str(), 1);
  if (!chosen.place.empty()) ::setenv("SHADOWIB_NEAR", chosen.place.c_str(), 1);
  if (chosen.automatic) ::setenv("SHADOWIB_SURVIVE", std::to_string(chosen.survive).c_str(), 1);
}

Status record_store(const std::string& directory, const std::string& job, const ChosenStore& chosen) {
  const std::string path = record_path(directory, job);
  std::error_code error;
  if (chosen.is_central()) {
    fs::remove(path, error);  // central needs none
    return error ? file_error(error.value(), "remove", path) : Status();
  }
  Fields fields{{"store", chosen.text()}, {"near", chosen.place}};
  if (chosen.automatic) fields["survive"] = std::to_string(chosen.survive);
  return place_file(path, encode_fields(fields), false);
}

std::vector<std::string> near_places(const std::string& directory) {
  std::set<std::string> places{default_near_place(Tier::kMem), default_near_place(Tier::kDisk)};
  if (const std::string near = environment("NEAR"); !near.empty()) places.insert(absolute(near));
  for (const std::string& job : jobs_in(directory)) {
    std::string store, place;
    if (recorded_store(directory, job, &store, &place).ok() && !place.empty()) places.insert(place);
  }
  std::vector<ListedSet> sets;
  (void)list_sets(directory, &sets).ok();  // told by whoever lists sets
  for (const ListedSet& set : sets)
    if (!set.manifest.placement.place.empty()) places.insert(set.manifest.placement.place);
  return {places.begin(), places.end()};
}

}  // namespace shadowib::cli
