// A pack and its conversations: what an app opens, asks and closes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "transcript.h"
#include "decoding/loop.h"
#include "drafters/lookups.h"
#include "drafters/model_drafters.h"
#include "engine/open.h"
#include "schedule/scheduler.h"

namespace edgedecode {

using OnText = std::function<int(const std::string&)>;

// The models' turn: threads that wait get it in the order of their arrival, one after each round.
class FairLock {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0, serving_ = 0;
};

// The process that made this. A fork of it has none of the engine's threads, and what they locked stays locked.
class Process {
 public:
  bool forked() const;
  void check() const;  // throws capability_error in a fork

 private:
  const int64_t own_ = getpid();
};

class Conversation;

class Pack : public std::enable_shared_from_this<Pack> {
 public:
  // options: JSON, as `edgedecode_open` has them.
  static std::shared_ptr<Pack> open(const std::string& folder, const std::string& options);
  static Json plan(const std::string& folder, const std::string& options);
  Json info();
  const Tokenizer& tokenizer() const { return process_.check(), *tokenizer_; }
  std::shared_ptr<Conversation> session(const std::string& options);
  int64_t trim_memory(int level);
  void close();
  bool forked() const { return process_.forked(); }

 private:
  friend class Conversation;
  Pack(const std::string& folder, const OpenOptions& options);
  void read_defaults(const Json& generation);
  void check() const;  // throws capability_error
  std::vector<std::shared_ptr<Conversation>> sessions();
  std::string adapter(const Json& given) const;
  void read_experience(const std::string& file);
  void write_experience();

  std::unique_ptr<OpenModels> models_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Turns> turns_;  // null: the pack has no chat template
  std::unique_ptr<Turns> thinking_[2];  // with its switch for thinking off and on; null: it has none
  SamplingOptions sampling_;      // the model's own defaults
  int max_tokens_ = 512;
  std::set<int32_t> ends_;
  Experience experience_;
  std::string experience_file_;
  FairLock turn_;
  std::mutex list_;  // of the sessions
  std::vector<std::weak_ptr<Conversation>> sessions_;
  std::atomic<bool> closed_{false};
  const Process process_;
};

class Conversation {
 public:
  Conversation(std::shared_ptr<Pack> pack, const std::string& options);
  ~Conversation() { release(); }
  // Returns the number of tokens. Throws what `edgedecode_generate` reports, besides EDGEDECODE_CANCELLED.
  int generate(const std::string& request, const OnText& on_text);
  void cancel() { cancelled_ = true; }
  Json stats();
  void rewind(int turns);
  void constrain(const edgedecode_constraint* constraint);
  // Releases models and memory, at once or at the end of an answer that this thread is in.
  void close();
  bool forked() const { return process_.forked(); }

 private:
  friend class Pack;
  struct Request {
    std::optional<Message> message;
    Ids tokens;
    int max_tokens = 0;
    std::vector<std::string> stops;
    std::optional<uint64_t> seed;
    SamplingOptions sampling;
    std::string adapter;
  };
  Pack& pack() const;
  Request read(const std::string& text);
  void open();
  void open_drafts();
  std::vector<std::string> drafter_names() const;
  std::unique_ptr<Drafter> drafter(const std::string& name);
  Error no_drafts(const std::string& never) const;  // what a drafter's model is missed with
  Turn open_turn(const Request& request) const;
  void begin(const Turn& turn, const std::string& adapter);
  AdapterSpan span(const char* model, const std::string& adapter, const Ids& prompt) const;
  bool decode_turn(const Turn& turn, const Request& request, Reply* reply, const OnText& on_text);
  bool on_round(const Verdict& verdict, Reply* reply, const OnText& on_text);
  void release();
  void drop_drafts();
  void check_idle() const;

  const Process process_;
  std::shared_ptr<Pack> pack_;  // null: closed
  std::mutex mutex_;            // held by the call that runs
  std::atomic<std::thread::id> running_{};
  std::atomic<bool> cancelled_{false};
  bool closing_ = false, stopped_ = false;
  bool stale_ = true;  // the parts must be opened before the next answer
  SamplingOptions own_, sampling_;  // of the session, and of the running answer
  std::string adapter_;  // "": none
  AdapterSpan span_;     // of what the state holds
  const Turns* turns_;
  std::optional<std::string> drafter_;
  std::optional<int> draft_max_;
  std::optional<uint64_t> seed_;
  bool ignore_eos_ = false;
  std::set<int32_t> ends_;
  int64_t answers_ = 0;
  int longest_ = 0;  // draft
  std::unique_ptr<Transcript> transcript_;
  std::unique_ptr<State> state_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<Drafting> drafting_;
  std::vector<Lease> leases_;
  Noise noise_;
  std::optional<edgedecode_constraint> given_;
  std::unique_ptr<Constraint> constraint_;
  Stats stats_;
  std::string finish_reason_;
  Ids answered_;
};

}  // namespace edgedecode
