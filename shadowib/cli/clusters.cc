#include "shadowib/cli/clusters.h"

#include <cstdlib>
#include <filesystem>

#include "hooks/job/cluster.h"
#include "hooks/store/files.h"
#include "shadowib/cli/jobs.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kPolicyFile[] = "policy.txt";  // no cluster is called so: names have no dot
constexpr char kDefaultPolicy[] = "paper";
constexpr double kLeastHoldS = 0.001, kLongestHoldS = 1e6;

std::string policy_of(const ClusterOptions& options) {
  return options.policy.empty() ? kDefaultPolicy : options.policy;
}

Status usage(const char* format, const std::string& a, const std::string& b = {}, const std::string& c = {}) {
  return Status::of(Code::kUsage, EINVAL, format, a.c_str(), b.c_str(), c.c_str());
}

// "a.b" is the owner of the sets of job a's cluster b, and may be a job's name as well.
Status judge_names(const std::string& directory, const std::string& job, const ClusterOptions& options) {
  std::error_code error;
  if (const std::size_t dot = job.rfind('.'); dot != std::string::npos) {
    const std::string first = job.substr(0, dot), cluster = job.substr(dot + 1);
    if (fs::exists(job_paths(directory, first).clusters + "/" + cluster, error))
      return usage("--job %.64s: the sets of job %.64s's cluster %.32s have that name; take another", job, first,
                   cluster);
  }
  if (options.cluster.empty()) return {};
  const std::string owner = set_owner(job, options.cluster);
  if (!valid_job_name(owner))
    return usage("--cluster %.32s: sets would be called %.100s, and names have at most 64 letters", options.cluster,
                 owner);
  if (fs::exists(job_paths(directory, owner).top, error))
    return usage(
        "--cluster %.32s: there is a job %.64s, whose sets have the names that the cluster's would have; take "
        "another name",
        options.cluster, owner);
  return {};
}

Status judge_place(const std::string& job, const ClusterOptions& options, const std::string& exchange,
                   std::string* backend) {
  if (exchange.starts_with("pmix:"))
    return usage(
        "--cluster %.32s: the exchange of job %.64s is a launcher's (pmix:), which ends with the launcher; "
        "name another with --exchange",
        options.cluster, job);
  if (*backend == "auto") *backend = "ib2tcp";
  if (*backend == "verbs")
    return usage("--cluster %.32s: backend verbs has no borders between clusters; use --backend ib2tcp",
                 options.cluster);
  return {};
}

Status parse_hold(const std::string& text, double* hold_s) {
  if (text.empty()) return {};
  char* end = nullptr;
  *hold_s = std::strtod(text.c_str(), &end);
  if (*end == '\0' && *hold_s >= kLeastHoldS && *hold_s <= kLongestHoldS) return {};
  return usage("SHADOWIB_CLUSTER_HOLD='%.40s' is no number of seconds from 0.001 to 1000000", text);
}

}  // namespace

void add_cluster_options(Command* command, ClusterOptions* options) {
  command
      ->add_option(
          "--cluster", options->cluster,
          "The cluster of the job that CMD belongs to: each is checkpointed\nalone, while the others run on. "
          "All processes of a job name one,\nor none; default $SHADOWIB_CLUSTER. Its messages to others are "
          "kept,\nfor one "
          "that goes back ($SHADOWIB_LOG_BYTES, default 256M)")
      ->not_empty("a cluster")
      ->type_name("NAME");
  command
      ->add_option("--policy", options->policy,
                   "With --cluster: which messages between clusters force a\ncheckpoint of the receiver's; paper "
                   "(default), vector or index;\nthe same in all clusters of a job")
      ->one_of({"paper", "vector", "index"})
      ->type_name("POLICY");
  command
      ->add_option("--hold", options->hold_s,
                   "With --cluster: how long a message waits for such a checkpoint\nthat is refused; default 10")
      ->between(kLeastHoldS, kLongestHoldS, "seconds")
      ->type_name("S");
}

std::set<std::string> recorded_clusters(const std::string& directory, const std::string& job) {
  std::vector<std::string> names;
  std::set<std::string> clusters;
  if (system_files().list(job_paths(directory, job).clusters, &names) != 0) return clusters;
  for (const std::string& name : names)
    if (valid_cluster_name(name)) clusters.insert(name);
  return clusters;
}

Status take_cluster_variables(const std::string& job, ClusterOptions* options) {
  if (options->cluster.empty()) options->cluster = variable_of("CLUSTER", job);
  if (options->cluster.empty())
    return options->given() ? Status(Code::kUsage, EINVAL, "--policy and --hold need --cluster NAME") : Status();
  if (options->policy.empty()) options->policy = variable_of("CLUSTER_POLICY", job);
  if (options->hold_s == 0) SHADOWIB_TRY(parse_hold(variable_of("CLUSTER_HOLD", job), &options->hold_s));
  if (!valid_cluster_name(options->cluster))
    return usage("--cluster '%.60s': %.100s", options->cluster, kClusterNameRule);
  federation::Policy policy{};
  if (!parse_policy(policy_of(*options), &policy))
    return usage("SHADOWIB_CLUSTER_POLICY='%.40s' is none of paper, vector and index", options->policy);
  return {};
}

Status join_clusters(const std::string& directory, const std::string& job, const ClusterOptions& options,
                     const std::string& exchange, std::string* backend, SharingLock* lock) {
  const std::string top = job_paths(directory, job).top, path = job_paths(directory, job).clusters;
  std::string who, policy;
  std::error_code error;
  SHADOWIB_TRY(judge_names(directory, job, options));
  if (options.cluster.empty() && !fs::exists(path, error)) return {};
  if (!options.cluster.empty()) SHADOWIB_TRY(judge_place(job, options, exchange, backend));
  SHADOWIB_TRY(ensure_directory(top));
  SHADOWIB_TRY(lock->take(top + "/entering"));
  const bool has_record = fs::exists(path, error);
  const bool in_use = job_in_use(directory, job, &who);
  if (!in_use) fs::remove_all(path, error);  // what an earlier job of that name had does not count
  if (options.cluster.empty())
    return in_use && has_record
               ? usage("job %.64s is a federation (%.80s is in a cluster): name one with --cluster", job, who)
               : Status();
  if (in_use && !has_record)
    return usage("job %.64s has no clusters, and is alive (%.80s): leave out --cluster, or end it first", job, who);
  SHADOWIB_TRY(ensure_directory(path));
  SHADOWIB_TRY(place_file(path + "/" + kPolicyFile, policy_of(options) + "\n", true));
  SHADOWIB_TRY(read_file(path + "/" + kPolicyFile, &policy));
  while (!policy.empty() && policy.back() == '\n') policy.pop_back();
  if (policy != policy_of(options))
    return usage(
        "the clusters of job %.64s have policy %.20s, and this one asks for %.20s: give all the same "
        "--policy",
        job, policy, policy_of(options));
  const std::size_t clusters =
      static_cast<std::size_t>(std::distance(fs::directory_iterator(path, error), fs::directory_iterator())) - 1;
  if (clusters >= federation::kMaxClusters && !fs::exists(path + "/" + options.cluster, error))
    return usage("--cluster %.32s: job %.64s has %.10s clusters, and may have no more", options.cluster, job,
                 std::to_string(clusters));
  return place_file(path + "/" + options.cluster, "", true);
}

Status forget_clusters(const std::string& directory, const std::string& job) {
  const std::string path = job_paths(directory, job).clusters;
  std::error_code error;
  fs::remove_all(path, error);
  return error ? file_error(error.value(), "remove", path) : Status();
}

Status renew_clusters(const std::string& directory, const std::string& job, Exchange& exchange,
                      const std::string& epoch, const SetFederation& federation) {
  const std::string path = job_paths(directory, job).clusters;
  SHADOWIB_TRY(forget_clusters(directory, job));
  SHADOWIB_TRY(ensure_directory(path));
  SHADOWIB_TRY(place_file(path + "/" + kPolicyFile, federation.policy + "\n", false));
  SHADOWIB_TRY(exchange.publish(federation_key(epoch), encode_fields({{"policy", federation.policy}})));
  for (const SetFederation::Cluster& cluster : federation.clusters) {
    SHADOWIB_TRY(place_file(path + "/" + cluster.name, "", false));
    SHADOWIB_TRY(exchange.publish(cluster_key(epoch, cluster.name),
                                  encode_fields({{"index", std::to_string(cluster.index)}})));
  }
  return {};
}

void export_cluster(const ClusterOptions& options) {
  for (const char* name : {"SHADOWIB_CLUSTER", "SHADOWIB_CLUSTER_POLICY", "SHADOWIB_CLUSTER_HOLD"}) ::unsetenv(name);
  if (options.cluster.empty()) return;
  ::setenv("SHADOWIB_CLUSTER", options.cluster.c_str(), 1);
  ::setenv("SHADOWIB_CLUSTER_POLICY", policy_of(options).c_str(), 1);
  if (options.hold_s > 0) ::setenv("SHADOWIB_CLUSTER_HOLD", std::to_string(options.hold_s).c_str(), 1);
}

}  // namespace shadowib::cli
