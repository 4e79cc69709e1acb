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

// "" unless it is meant for this job.
std::string variable_of(const char* name, const std::string& job) {
  const std::string owner = environment("JOB");
  return owner.empty() || owner == job ? environment(name) : "";
}

std::string absolute(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error).lexically_normal();
  if (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();
  return whole;
}

std::string record_path(const std::string& directory, const std::string& job) {
  return job_paths(directory, job).top + "/store";
}

}  // namespace

void add_store_options(Command* command, StoreOptions* options) {
  command
      ->add_option(
          "--store", options->store,
          "Where images lie: central (in DIR), mem:SCHEME (in memory of each\nhost) or disk:SCHEME (on each host's "
          "disk); SCHEME is single,\nmirror (a copy of each on another host), xor (one parity a group of\nup to 8 "
          "hosts: survives one of them) or rs:M (M parities: any M of\nthem). Default $SHADOWIB_STORE, else as the "
          "job was started, else\ncentral")
      ->not_empty("a store")
      ->type_name("STORE");
  command
      ->add_option("--near", options->near,
                   "The directory for mem: and disk:, the same on every host;\ndefault $SHADOWIB_NEAR, else /dev/shm "
                   "for mem: and /var/tmp for\ndisk:")
      ->not_empty("a directory")
      ->type_name("PLACE");
}

Status recorded_store(const std::string& directory, const std::string& job, std::string* store, std::string* place) {
  std::string text;
  Fields fields;
  const Status status = read_file(record_path(directory, job), &text);
  if (status.error() == ENOENT || status.error() == ENOTDIR) return {};
  SHADOWIB_TRY(status);
  if (!decode_fields(text, &fields))
    return Status::of(Code::kVersion, 0, "%.250s is of another shadowib; name the store with --store",
                      record_path(directory, job).c_str());
  *store = field_text(fields, "store");
  *place = field_text(fields, "near");
  return {};
}

Status choose_store(const StoreOptions& options, const std::string& directory, const std::string& job,
                    StoreSpec* spec, std::string* place) {
  std::string store = options.store, recorded_place;
  const std::string store_variable = variable_of("STORE", job), near_variable = variable_of("NEAR", job);
  const bool from_variable = store.empty() && !store_variable.empty();
  if (store.empty()) store = store_variable;
  if (store.empty()) SHADOWIB_TRY(recorded_store(directory, job, &store, &recorded_place));
  if (store.empty()) store = "central";
  if (const Status status = parse_store(store, spec); !status.ok())
    return from_variable ? Status::of(Code::kUsage, EINVAL, "SHADOWIB_STORE: %.300s", status.text()) : status;
  place->clear();
  if (!spec->is_near()) {
    if (options.near.empty()) return {};
    return Status::of(Code::kUsage, EINVAL,
                      "--near %.100s: images of store central lie in DIR; use --store mem: or "
                      "disk: with it",
                      options.near.c_str());
  }
  *place = !options.near.empty() ? options.near : !recorded_place.empty() ? recorded_place : near_variable;
  if (place->empty()) *place = default_near_place(spec->tier);
  *place = absolute(*place);
  if (place->size() > 800)
    return Status::of(Code::kUsage, ENAMETOOLONG, "--near has %zu bytes, at most 800 can be used", place->size());
  return {};
}

Status record_store(const std::string& directory, const std::string& job, const StoreSpec& spec,
                    const std::string& place) {
  const std::string path = record_path(directory, job);
  std::error_code error;
  if (!spec.is_near()) {
    fs::remove(path, error);  // central needs none
    return error ? file_error(error.value(), "remove", path) : Status();
  }
  return place_file(path, encode_fields({{"store", spec.text()}, {"near", place}}), false);
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
