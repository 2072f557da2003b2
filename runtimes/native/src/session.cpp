#include "session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "errors.h"
#include "pack/files.h"

extern "C" int64_t edgedecode_draw_scratch(int64_t size);  // of runtimes/onnx/kernels/draw.cpp

namespace edgedecode {
namespace {

constexpr int kLongestDraft = 16, kWideVocabulary = 65536;  // half of it for a wide vocabulary, whose rows are large
constexpr int kLeastRoom = 8;  // turns are dropped if an answer would have less than this part of the context

// While it lives, others may use the models.
struct Pause {
  explicit Pause(FairLock& models) : turn(models) { turn.unlock(); }
  ~Pause() { turn.lock(); }
  FairLock& turn;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json options_of(const std::string& text, const std::string& subject) {
  Json found = Json::parse(text.empty() ? "{}" : text, subject);
  found.object(subject);
  return found;
}

int longest_draft(int rows) { return rows <= kWideVocabulary ? kLongestDraft : kLongestDraft / 2; }

// At most so many that they and a context's tokens can be counted together.
int max_tokens_of(const Json& given) {
  return static_cast<int>(std::min<int64_t>(INT32_MAX / 2, given.integer("max_tokens", 1)));
}

std::vector<Holder> lookup_holders(int vocabulary_size, bool drafts) {
  std::vector<Holder> found = {{"sampling", edgedecode_draw_scratch(vocabulary_size)}};
  if (!drafts) found.push_back({"recycled logits", RecycleDrafter::nbytes(vocabulary_size)});
  return found;
}

SessionNeeds session_needs(const PackManifest& pack) {
  const PackedModel &target = *pack.find("target"), *draft = pack.find("draft");
  const int size = target.vocabulary_size;
  int64_t adapter = 0, own = 0;  // the largest
  for (const auto& each : target.adapters) adapter = std::max(adapter, each.second.nbytes);
  if (draft)
    for (const auto& each : draft->adapters) own = std::max(own, each.second.nbytes);
  return {kMostForced + 1, 1, [=](int, bool drafts) {
            auto found = lookup_holders(size, drafts);
            if (adapter) found.push_back({"adapter", adapter + (drafts ? own : 0)});
            return found;
          }};
}

const char* drafter_of(const PackedModel& draft) {
  return draft.head ? "head" : draft.token_ids_file.empty() ? "model" : "trim";
}

Json holders_json(const std::vector<Holder>& holders) {
  Json::Object found;
  for (const Holder& each : holders) found.emplace_back(each.name, each.nbytes);
  return found;
}

}  // namespace

void FairLock::lock() {
  std::unique_lock<std::mutex> held(mutex_);
  const uint64_t mine = next_++;
  changed_.wait(held, [&] { return serving_ == mine; });
}

void FairLock::unlock() {
  const std::lock_guard<std::mutex> held(mutex_);
  ++serving_;
  changed_.notify_all();
}

std::shared_ptr<Pack> Pack::open(const std::string& folder, const std::string& options) {
  return std::shared_ptr<Pack>(new Pack(folder, OpenOptions::read(options_of(options, "options"))));
}

bool Process::forked() const { return getpid() != own_; }

void Process::check() const {
  if (forked())
    throw capability_error("this process was forked from the one that opened the pack: open the pack in it");
}

Pack::Pack(const std::string& folder, const OpenOptions& options) {
  PackManifest read = PackManifest::read(folder);
  if (options.verify) read.verify();
  tokenizer_ = Tokenizer::open(read.tokenizer);  // first: the plan counts what the process holds
  const PackedModel& target = *read.find("target");
  if (target.vocabulary_size != std::min(target.rows, tokenizer_->size()))
    throw manifest_error(read.tokenizer, " has ", tokenizer_->size(), " ids, and the target ", target.vocabulary_size,
                         ": package the pack again");
  const SessionNeeds needs = session_needs(read);
  models_ = open_models(std::move(read), options, needs);
  const PackManifest& manifest = models_->pack;
  if (const Json* turns = manifest.json.find("turns")) {
    turns_ = std::make_unique<Turns>(*turns);
    if (const Json* thinking = turns->find("thinking"))
      for (const auto& each : thinking->object("turns.thinking"))
        thinking_[each.first == "true"] = std::make_unique<Turns>(each.second);
  }
  ends_.insert(manifest.end_ids.begin(), manifest.end_ids.end());
  if (const Json* defaults = manifest.json.find("generation")) try {
      read_defaults(*defaults);
    } catch (const Error& error) {
      throw manifest_error(folder, "/native.json: generation: ", error.what(),
                           ": use a newer library, or package the pack again");
    }
  if (!options.experience.empty()) read_experience(options.experience);
}

// The model's own sampling options, and how many tokens an answer has.
void Pack::read_defaults(const Json& generation) {
  const Json* most = generation.find("max_tokens");
  if (most && !most->is(Json::Kind::kNull)) max_tokens_ = max_tokens_of(*most);
  if (const Json* sampling = generation.find("sampling"))
    for (const auto& each : sampling->object("sampling"))
      if (!sampling_.take(each.first, each.second))
        throw unknown_name("sampling option", each.first, SamplingOptions::names());
}

Json Pack::plan(const std::string& folder, const std::string& options) {
  const PackManifest manifest = PackManifest::read(folder);
  const MemoryPlan plan = plan_memory(manifest, OpenOptions::read(options_of(options, "options")),
                                      session_needs(manifest),
                                      resident_nbytes() + (engine_is_loaded() ? 0 : kLibraryNbytes));
  Json::Array cuts(plan.cuts.begin(), plan.cuts.end());
  return Json::Object{{"total", plan.total()},       {"limit", plan.limit},     {"context", plan.context},
                      {"threads", plan.threads},     {"cuts", cuts},            {"drafts", plan.draft != nullptr},
                      {"holders", holders_json(plan.holders)}};
}

void Pack::check() const {
  process_.check();
  if (closed_) throw capability_error("the pack is closed");
}

Json Pack::info() {
  check();
  Json::Array models = {"target"}, drafters = {"suffix"}, adapters;
  for (const auto& each : models_->pack.find("target")->adapters) adapters.push_back(each.first);
  const PackedModel* draft = models_->given_back ? nullptr : models_->plan.draft;  // another thread may be closing it
  if (!draft) drafters.push_back("recycle");
  else models.push_back(draft->name), drafters.insert(drafters.begin(), drafter_of(*draft));
  return Json::Object{{"name", models_->pack.name},
                      {"context", models_->plan.context},
                      {"models", models},
                      {"drafters", drafters},
                      {"adapters", adapters},
                      {"vocabulary", models_->target->card().vocabulary_size},
                      {"ends", Json::Array(ends_.begin(), ends_.end())},
                      {"memory", Json::Object{{"limit", models_->budget.limit()},
                                              {"used", models_->budget.used()},
                                              {"holders", holders_json(models_->budget.holders())}}},
                      {"threads", models_->plan.threads}};
}

std::shared_ptr<Conversation> Pack::session(const std::string& options) {
  check();
  const auto made = std::make_shared<Conversation>(shared_from_this(), options);
  const std::lock_guard<FairLock> turn(turn_);
  made->open();  // what that made before it failed, the destructor gives back in a turn of its own
  const std::lock_guard<std::mutex> held(list_);
  sessions_.erase(std::remove_if(sessions_.begin(), sessions_.end(), [](const auto& each) { return each.expired(); }),
                  sessions_.end());
  sessions_.push_back(made);
  return made;
}

// The name of an adapter; null: none.
std::string Pack::adapter(const Json& given) const {
  if (given.is(Json::Kind::kNull)) return "";
  const std::string name = given.string("adapter");
  std::string known;
  for (const auto& each : models_->pack.find("target")->adapters) {
    if (each.first == name) return name;
    known += (known.empty() ? "" : ", ") + each.first;
  }
  throw input_error(known.empty() ? "the pack has no adapters: leave out \"adapter\""
                                  : "the pack has no adapter '" + name + "'; it has: " + known);
}

std::vector<std::shared_ptr<Conversation>> Pack::sessions() {
  const std::lock_guard<std::mutex> held(list_);
  std::vector<std::shared_ptr<Conversation>> found;
  for (const auto& each : sessions_)
    if (auto session = each.lock()) found.push_back(std::move(session));
  return found;
}

// Running answers go on without drafts; contexts of idle conversations are read again when they are needed.
int64_t Pack::trim_memory(int level) {
  process_.check();
  if (closed_ || level <= 0) return 0;
  std::vector<std::shared_ptr<Conversation>> open;  // let go after the turn
  const std::lock_guard<FairLock> turn(turn_);
  open = sessions();
  const int64_t before = models_->budget.used();
  for (const auto& session : open) session->drop_drafts();
  models_->close_drafts();
  for (const auto& session : open) {
    if (level < 2 || session->running_ != std::thread::id() || !session->mutex_.try_lock()) continue;
    session->state_.reset();
    session->mutex_.unlock();
  }
  return before - models_->budget.used();
}

void Pack::close() {
  if (closed_.exchange(true)) return;
  for (const auto& session : sessions()) session->close();
  if (!experience_file_.empty()) write_experience();
}

// A file that is missing or damaged is what a first start has: nothing is known. Another file is not replaced.
void Pack::read_experience(const std::string& file) {
  const auto text = file_text(file);
  const bool own = text ? text->empty() || text->compare(0, 9, "{\"tables\"") == 0 : access(file.c_str(), F_OK) != 0;
  if (!own) throw input_error("experience: ", file, " holds something else: give the path of a file of its own");
  experience_file_ = file;
  try {
    if (text) experience_ = Experience::from_json(Json::parse(*text, file)), experience_.doubt();
  } catch (const Error&) {
    experience_ = Experience();
  }
  write_experience();  // now, so that a place that cannot be written is refused
}

void Pack::write_experience() {
  const std::lock_guard<FairLock> turn(turn_);
  const std::string written = experience_file_ + "." + std::to_string(getpid()), text = experience_.as_json().text();
  FILE* file = std::fopen(written.c_str(), "wb");
  bool whole = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file) whole = std::fclose(file) == 0 && whole;
  if (whole && std::rename(written.c_str(), experience_file_.c_str()) == 0) return;
  std::remove(written.c_str());
  throw input_error("experience: ", experience_file_, " cannot be written: give a file in a folder of the app");
}

// A message of the option "messages".
static Message said_before(const Json& said) {
  for (const auto& each : said.object("a message"))
    if (each.first != "role" && each.first != "content")
      throw unknown_name("member of a message", each.first, "role, content");
  Message found{said.at("role", "messages").string("a role"), said.at("content", "messages").string("a content")};
  if (found.role != "user" && found.role != "assistant")
    throw unknown_name("role of a message", found.role, "user, assistant; the system's text is the option system");
  return found;
}

Conversation::Conversation(std::shared_ptr<Pack> pack, const std::string& text)
    : pack_(std::move(pack)), own_(pack_->sampling_), turns_(pack_->turns_.get()) {
  std::vector<Message> messages;
  const Json options = options_of(text, "options");
  for (const auto& each : options.object("options")) {
    const std::string& name = each.first;
    if (name == "system") messages.insert(messages.begin(), {"system", each.second.string(name)});
    else if (name == "messages")
      for (const Json& said : each.second.array(name)) messages.push_back(said_before(said));
    else if (name == "drafter") drafter_ = each.second.string(name);
    else if (name == "draft_max") draft_max_ = static_cast<int>(each.second.integer(name, 0, kMaxDraft));
    else if (name == "seed") seed_ = each.second.whole(name);
    else if (name == "ignore_eos") ignore_eos_ = each.second.boolean(name);
    else if (name == "enable_thinking") {
      turns_ = pack_->thinking_[each.second.boolean(name)].get();
      if (!turns_) throw capability_error("this pack's chat template has no such switch: leave out \"enable_thinking\"");
    } else if (name == "adapter") adapter_ = pack_->adapter(each.second);
    else if (!own_.take(name, each.second))
      throw unknown_name("option", name,
                         "system, messages, enable_thinking, adapter, drafter, draft_max, seed, ignore_eos, " +
                             SamplingOptions::names());
  }
  if (!turns_ && !messages.empty())
    throw input_error("this pack has no chat template: leave out \"system\" and \"messages\"");
  if (!messages.empty() && messages.back().role == "user")
    throw input_error("messages end with the user's: leave it out, and ask it");
  if (!messages.empty()) turns_->render(with(messages, {"user", ""}));  // refused now, not in the first answer
  if (!ignore_eos_) ends_ = pack_->ends_;
  sampling_ = own_;
  transcript_ = std::make_unique<Transcript>(pack_->tokenizer_.get(), turns_, std::move(messages));
}

Pack& Conversation::pack() const {
  if (!pack_ || pack_->closed_) throw capability_error("the session is closed");
  return *pack_;
}

// Everything that depends on the sampling options or was given back.
void Conversation::open() {
  const int size = pack_->models_->target->card().vocabulary_size;
  sampling_.bind(size, [&](const std::string& text) {
    std::vector<int64_t> found;
    for (int id = 0; id < pack_->tokenizer_->size(); ++id)
      if (pack_->tokenizer_->bytes(id).find(text) != std::string::npos) found.push_back(id);
    return found;
  });
  sampler_ = std::make_unique<Sampler>(sampling_, size);
  longest_ = draft_max_ ? *draft_max_ : longest_draft(pack_->models_->target->card().rows);
  if (!state_) {
    const int rows = std::max(longest_, kMostForced) + 1;  // a constraint may come later
    state_ = pack_->models_->target->new_state(pack_->models_->plan.context, rows);
    state_->read_with(span("target", adapter_, {}));  // refused now, not in the first answer
  }
  open_drafts();
  stale_ = false;
}

void Conversation::open_drafts() {
  drafting_.reset();
  leases_.clear();
  Budget& budget = pack_->models_->budget;
  const int size = pack_->models_->target->card().vocabulary_size;
  const auto names = drafter_names();
  for (const Holder& each : lookup_holders(size, std::find(names.begin(), names.end(), "recycle") == names.end()))
    leases_.push_back(budget.reserve(each.name, each.nbytes));
  SchedulerOptions options;
  options.draft_max = std::max(1, longest_);
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (const std::string& name : names) {
    try {
      drafters.push_back(drafter(name));
    } catch (const Error& error) {
      if (drafter_ || draft_max_ || error.code == EDGEDECODE_BAD_INPUT) throw;
      continue;  // no option names it: it is left out
    }
    if (drafters.back()->free()) options.free.insert(name);
    else options.models.push_back(name);
  }
  if (drafters.empty()) return;
  std::unique_ptr<Policy> policy;
  if (draft_max_) policy = std::make_unique<FixedLength>(*draft_max_);
  else policy = std::make_unique<Scheduler>(&pack_->experience_, options);
  drafting_ = std::make_unique<Drafting>(std::move(drafters), std::move(policy), !draft_max_, seconds);
}

std::vector<std::string> Conversation::drafter_names() const {
  const OpenModels& models = *pack_->models_;
  std::string own;
  if (models.draft) own = drafter_of(*models.plan.draft);
  if (draft_max_ == 0 || drafter_ == "none") return {};
  if (drafter_) return {*drafter_};
  if (draft_max_) return {own.empty() ? "suffix" : own};
  if (own.empty()) return {"recycle", "suffix"};
  return {own, "suffix"};
}

Error Conversation::no_drafts(const std::string& never) const {
  return capability_error(!pack_->models_->given_back ? never
                                                      : "drafts were given back by edgedecode_trim_memory: leave out "
                                                        "\"drafter\", or open the folder again");
}

std::unique_ptr<Drafter> Conversation::drafter(const std::string& name) {
  const OpenModels& models = *pack_->models_;
  const int size = models.target->card().vocabulary_size, capacity = state_->capacity();
  const DraftSetting setting{&sampling_, &noise_, &ends_, size, capacity};
  if (name == "suffix") return std::make_unique<SuffixDrafter>(ends_);
  if (name == "recycle") return std::make_unique<RecycleDrafter>(size, ends_);
  const bool head = name == "head";
  if (!head && name != "model" && name != "trim")
    throw unknown_name("drafter", name, "none, suffix, recycle, model, trim or head");
  LanguageModel* model = models.draft.get();
  if (!model || drafter_of(*models.plan.draft) != name)
    throw no_drafts(head ? "this pack has no drafting head: `edgedecode head add PACK SOURCE` adds one"
                         : "there is no draft model: leave out \"drafter\", or package a pack that has one");
  std::unique_ptr<ModelState> state;
  if (head) state = std::make_unique<HeadState>(model, state_.get(), state_->keep_features(), capacity);
  else state = std::make_unique<ModelState>(model, capacity);
  return std::make_unique<ModelDrafter>(name, model, std::move(state), setting);
}

Conversation::Request Conversation::read(const std::string& text) {
  const Json given = options_of(text, "request");
  Request request;
  request.max_tokens = pack_->max_tokens_;
  SamplingOptions sampling = own_;
  request.adapter = adapter_;
  int prompts = 0;
  for (const auto& each : given.object("request")) {
    const std::string& name = each.first;
    if (name == "message") request.message = Message{"user", each.second.string(name)}, ++prompts;
    else if (name == "prompt") request.tokens = pack_->tokenizer_->prompt(each.second.string(name)), ++prompts;
    else if (name == "tokens") {
      ++prompts;
      for (const Json& id : each.second.array(name))
        request.tokens.push_back(static_cast<int32_t>(std::clamp<int64_t>(id.integer("a token"), -1, INT32_MAX)));
    } else if (name == "max_tokens") {
      request.max_tokens = max_tokens_of(each.second);
    } else if (name == "stop") {
      for (const Json& stop : each.second.array(name)) request.stops.push_back(stop.string("a stop string"));
    } else if (name == "adapter") {
      request.adapter = pack_->adapter(each.second);
    } else if (name == "seed") {
      request.seed = each.second.whole(name);
    } else if (!sampling.take(name, each.second)) {
      throw unknown_name("field", name,
                         "message, prompt, tokens, max_tokens, stop, adapter, seed, " + SamplingOptions::names());
    }
  }
  if (prompts != 1)
    throw input_error("a request has one of message, prompt and tokens, and this one has ", prompts);
  if (request.message && !turns_) throw input_error("this pack has no chat template: give \"prompt\"");
  for (int32_t token : request.tokens)
    if (token < 0 || token >= pack_->tokenizer_->size())
      throw input_error("prompt: token id ", token, " is not in the vocabulary: 0 to ", pack_->tokenizer_->size() - 1);
  if (!request.message && request.tokens.empty())
    throw input_error("prompt is empty: without a chat template it needs at least one token");
  request.sampling = sampling;
  return request;
}

Turn Conversation::open_turn(const Request& request) const {
  const int context = state_->capacity();
  Turn turn;
  const int room = std::min(request.max_tokens, context / kLeastRoom);
  if (request.message) turn = transcript_->open(*request.message, context, room);
  else turn.before = transcript_->messages(), turn.tokens = request.tokens;
  if (static_cast<int>(turn.tokens.size()) + 1 > context) {
    const int longest = pack_->models_->target->card().context;
    const bool raised = context < longest && static_cast<int>(turn.tokens.size()) < longest;
    const std::string raise = "raise \"context\" (up to " + std::to_string(longest) + ")";
    throw context_exceeded(turn.tokens.size(), context,
                           "shorten it, or " + (raised ? raise : "use a model with a longer context"));
  }
  return turn;
}

// An activated adapter is on from the last of its invocation tokens; without any it stays off, as in PEFT.
AdapterSpan Conversation::span(const char* model, const std::string& adapter, const Ids& prompt) const {
  const PackedModel* facts = pack_->models_->pack.find(model);
  const auto found = facts ? facts->adapters.find(adapter) : std::map<std::string, PackedAdapter>::const_iterator();
  if (!facts || found == facts->adapters.end()) return {};
  const Ids& invocation = found->second.invocation;
  const auto at = std::find_end(prompt.begin(), prompt.end(), invocation.begin(), invocation.end());
  if (invocation.empty()) return {&found->second, 0};
  if (at == prompt.end()) return {};
  return {&found->second, static_cast<int>(at - prompt.begin())};
}

// Keeps of the KV cache what it shares with the turn's tokens and the adapter's.
void Conversation::begin(const Turn& turn, const std::string& adapter) {
  const std::shared_ptr<Ids> old = transcript_->tokens;
  transcript_->begin(turn);
  const Ids& now = *transcript_->tokens;
  int shared = 0;
  const AdapterSpan next = span("target", adapter, turn.tokens);
  const int most = std::min({state_->length(), static_cast<int>(old->size()), static_cast<int>(now.size()),
                             span_.shared_with(next)});
  while (shared < most && (*old)[shared] == now[shared]) ++shared;
  if (shared < state_->length()) state_->crop(shared);
  state_->read_with(next);
  span_ = next;  // last: what is left is valid for both
  if (drafting_) drafting_->read_with(span("draft", "draft:" + adapter, turn.tokens));
}

int Conversation::generate(const std::string& text, const OnText& on_text) {
  check_idle();
  const std::lock_guard<std::mutex> call(mutex_);
  Pack& pack = this->pack();
  const Request request = read(text);
  Reply reply(*pack.tokenizer_, request.stops);
  running_ = std::this_thread::get_id();
  pack.turn_.lock();
  std::optional<Turn> turn;
  bool recorded = false, cancelled = false;
  const auto leave = [&] {
    if (turn && !recorded) transcript_->end(*turn, "", ends_);
    if (turn) cancelled = cancelled_.exchange(false) || pack.closed_;  // a cancel before an answer begins stays
    pack.turn_.unlock();
    running_ = std::thread::id();
    if (closing_) release();
  };
  try {
    if (stale_ || !request.sampling.same_as(sampling_)) {
      sampling_ = request.sampling;
      stale_ = true;  // also if that fails
      open();
    }
    turn = open_turn(request);
    const uint64_t seed = request.seed ? *request.seed : answer_seed(seed_, answers_);
    ++answers_;
    stats_ = Stats();
    stats_.seed = seed;
    stats_.mode = !drafting_ ? "plain" : draft_max_ ? drafting_->names() : "auto";
    stopped_ = false;
    answered_.clear();
    begin(*turn, request.adapter);
    constraint_.reset();
    const int size = static_cast<int>(sampler_->vocabulary_size());
    if (given_) constraint_ = std::make_unique<Constraint>(*given_, size, ends_);
    bool ended = false;
    for (int64_t restarts = 0;; ++restarts) {
      stats_.dropped_turns += turn->dropped;
      noise_.begin(restarts ? answer_seed(seed, -restarts) : seed);  // at these positions the seed's noise was used
      ended = decode_turn(*turn, request, &reply, on_text);
      const bool full = static_cast<int>(transcript_->tokens->size()) >= state_->capacity();
      if (ended || stopped_ || !full || static_cast<int>(transcript_->replied()) >= request.max_tokens) break;
      const auto shorter = transcript_->shorter(*turn, state_->capacity());
      if (!shorter) break;
      turn = shorter;
      begin(*turn, request.adapter);
      stats_.reread_tokens += static_cast<int64_t>(transcript_->tokens->size()) - state_->length();
    }
    const std::string rest = reply.rest();
    const Ids& tokens = *transcript_->tokens;
    answered_.assign(tokens.end() - static_cast<int64_t>(transcript_->replied()), tokens.end());
    ended = ended || !reply.matched().empty();
    stats_.stop_string = reply.matched();
    stats_.context_full = !ended && !stopped_ && static_cast<int>(transcript_->tokens->size()) >= state_->capacity();
    finish_reason_ = ended ? "stop" : stopped_ ? "cancelled" : "length";
    stats_.planned_nbytes = pack.models_->budget.used();
    stats_.peak_nbytes = peak_nbytes();
    transcript_->end(*turn, reply.text(), ends_);
    recorded = true;
    if (!rest.empty() && !stopped_ && on_text) {
      const Pause pause(pack.turn_);
      on_text(rest);
    }
  } catch (...) {
    leave();
    throw;
  }
  leave();
  if (stopped_ && cancelled) throw Error(EDGEDECODE_CANCELLED, "the answer was cancelled");
  return static_cast<int>(answered_.size());
}

// Decodes after the conversation's tokens; returns whether the reply ended by itself.
bool Conversation::decode_turn(const Turn& turn, const Request& request, Reply* reply, const OnText& on_text) {
  DecodeSetting setting;
  setting.sampler = sampler_.get();
  setting.noise = &noise_;
  setting.drafting = drafting_.get();
  setting.constraint = constraint_.get();
  setting.kind = request.adapter + (constraint_ ? "{}" : "");
  setting.ends = &ends_;
  setting.clock = seconds;
  bool ended = false;
  if ((stopped_ = cancelled_)) return false;
  const int most = request.max_tokens - static_cast<int>(turn.reply.size());
  decode(*pack_->models_->target, *state_, transcript_->tokens, most, setting, &stats_,
         [&](const Verdict* verdict) {
           if (verdict) {
             if (!on_round(*verdict, reply, on_text)) stopped_ = true;
             ended = verdict->outcome == Outcome::kEnded || !reply->matched().empty();
           } else {
             const Pause pause(pack_->turn_);
           }
           if (cancelled_ || pack_->closed_) stopped_ = !ended;
           return !stopped_ && !ended;
         });
  return ended;
}

// Shows a round's text; returns whether the caller wants more.
bool Conversation::on_round(const Verdict& verdict, Reply* reply, const OnText& on_text) {
  const double started = seconds();
  size_t taken = 0;
  const std::string text = reply->say(verdict.tokens, &taken);
  const size_t surplus = verdict.tokens.size() - taken;  // behind a stop string
  transcript_->tokens->resize(transcript_->tokens->size() - surplus);
  stats_.tokens -= static_cast<int64_t>(surplus);
  if (stats_.rounds > 1) stats_.spend_host(seconds() - started);
  const Pause pause(pack_->turn_);  // the callback may take its time, and call the library
  return text.empty() || !on_text || on_text(text) == 0;
}

Json Conversation::stats() {
  check_idle();
  const std::lock_guard<std::mutex> call(mutex_);
  Json::Array tokens(answered_.begin(), answered_.end());
  return Json::Object{{"tokens", tokens}, {"finish_reason", finish_reason_}, {"stats", stats_.as_json()}};
}

void Conversation::rewind(int turns) {
  check_idle();
  const std::lock_guard<std::mutex> call(mutex_);
  pack();
  if (turns < 0) throw input_error("turns ", turns, " is out of range: 0 or more");
  transcript_->rewind(static_cast<size_t>(turns));
}

void Conversation::constrain(const edgedecode_constraint* constraint) {
  if (constraint && (!constraint->mask || !constraint->commit))
    throw input_error("a constraint needs `mask` and `commit`");
  check_idle();
  const std::lock_guard<std::mutex> call(mutex_);
  given_ = constraint ? std::optional<edgedecode_constraint>(*constraint) : std::nullopt;
}

void Conversation::close() {
  cancelled_ = true;
  if (running_ == std::this_thread::get_id()) {  // from the answer's own callback: at its end
    closing_ = true;
    return;
  }
  const std::lock_guard<std::mutex> call(mutex_);
  release();
}

// A running answer goes on without them.
void Conversation::drop_drafts() {
  if (drafting_) drafting_->close();
  if (drafter_ && *drafter_ != "suffix" && *drafter_ != "recycle") drafter_ = "none";  // its model is gone
  stale_ = true;
}

void Conversation::check_idle() const {
  process_.check();
  if (running_ == std::this_thread::get_id())
    throw input_error("an answer of this session is running: its callback can only cancel or close it");
}

void Conversation::release() {
  if (!pack_) return;
  {
    const std::lock_guard<FairLock> turn(pack_->turn_);
    drafting_.reset();
    constraint_.reset();
    state_.reset();
    leases_.clear();
  }
  pack_.reset();
}

}  // namespace edgedecode
