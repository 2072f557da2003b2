/* edgedecode in an app: open a packaged model, decode with verified drafts within a memory budget.
 *
 * Strings are UTF-8. Functions that can fail return null or a negative number and leave one sentence in
 * `edgedecode_last_error`, the one that the command line would print. No exception leaves the library.
 * A pack and its sessions may be used from any threads; calls on one session wait for each other, except
 * `edgedecode_cancel`. `edgedecode package PACK --native` writes the folder that `edgedecode_open` reads.
 */
#ifndef EDGEDECODE_H
#define EDGEDECODE_H

#include <stddef.h>
#include <stdint.h>

#define EDGEDECODE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct edgedecode_pack edgedecode_pack;
typedef struct edgedecode_session edgedecode_session;

/* What a call returns besides a count of tokens or bytes. */
enum {
  EDGEDECODE_CANCELLED = -1,
  EDGEDECODE_BAD_INPUT = -2,    /* a request or an option, the command line's exit code 2 */
  EDGEDECODE_FAILED = -3,       /* a damaged pack, an engine's error */
  EDGEDECODE_OVER_BUDGET = -4,  /* nothing was allocated */
};

/* The library's version, for example "0.1.0". */
EDGEDECODE_API const char* edgedecode_version(void);

/* The sentence of the calling thread's last failure; "" before any. Valid until its next call. */
EDGEDECODE_API const char* edgedecode_last_error(void);

/* Frees a string that this library returned as `char*`. */
EDGEDECODE_API void edgedecode_free(char* text);

/* How much memory opening would take, as JSON: {"total": bytes, "limit", "context", "threads", "cuts": [...], "drafts",
 * "holders": {name: bytes}}. Opens no model. options: see `edgedecode_open`. The caller frees the result. */
EDGEDECODE_API char* edgedecode_plan(const char* folder, const char* options);

/* Opens a folder. options (JSON, or null): "engine" (ONNX Runtime's library, by default libonnxruntime.so), "memory"
 * (bytes that the process may hold; by default what it holds and three quarters of what is available), "context"
 * (positions; by default what fits, up to 8192), "threads" (by default the fast cores, up to 8; 1 for a small
 * model), "drafts" (true), "verify" (false: digests of all files), "experience" (a file that keeps what was learnt of
 * this device). A budget that is too small takes the context first, unless "context" asks for it, then the drafts. */
EDGEDECODE_API edgedecode_pack* edgedecode_open(const char* folder, const char* options);

/* Closes a pack. Running answers are cancelled, open sessions are closed; their handles stay valid to close. If the
 * "experience" could not be written, `edgedecode_last_error` says so; else it is "". */
EDGEDECODE_API void edgedecode_close(edgedecode_pack* pack);

/* Facts of an open pack as JSON: name, context, models, drafters, adapters, vocabulary (ids), ends (ids that end an
 * answer), memory by holder, threads. The caller frees it. */
EDGEDECODE_API char* edgedecode_info(edgedecode_pack* pack);

/* Opens a conversation with memory of its own. options (JSON, or null): "system" (text), "messages" (what was said
 * before: a list of {"role": "user" or "assistant" in turn, "content"}), "enable_thinking" (by default as the chat
 * template has it), "adapter" (the name of one of the pack's; by default none), "drafter" and "draft_max" (as `generate
 * --drafter` and `--draft-max`, without trees), "seed", "ignore_eos", and every sampling option of the command line by
 * its name in the HTTP API. */
EDGEDECODE_API edgedecode_session* edgedecode_session_open(edgedecode_pack* pack, const char* options);

EDGEDECODE_API void edgedecode_session_close(edgedecode_session* session);

/* Takes a piece of an answer, complete characters, not terminated. Another value than 0 ends the answer there. As all
 * callbacks, it must not throw. */
typedef int (*edgedecode_on_text)(void* user, const char* text, size_t size);

/* Answers. request (JSON): "message" (text of the user's turn), or "prompt" (text without a template), or "tokens"
 * (ids); "max_tokens", "stop", "seed", "adapter" (null: none) and sampling options for this answer. Returns the
 * number of tokens, or a negative number. A cancelled answer keeps what was written. Another adapter than the answer
 * before reads the conversation again, an activated one only from its invocation tokens on. */
EDGEDECODE_API int32_t edgedecode_generate(edgedecode_session* session, const char* request, edgedecode_on_text on_text,
                                           void* user);

/* Ends the running answer, or the next one if none has begun, after its round; from any thread. */
EDGEDECODE_API void edgedecode_cancel(edgedecode_session* session);

/* The last answer's counts, ids and times as JSON, as `generate --json` has them. The caller frees it. */
EDGEDECODE_API char* edgedecode_stats(edgedecode_session* session);

/* Forgets the conversation, except for its first `turns` turns. Returns 0, or a negative number. */
EDGEDECODE_API int32_t edgedecode_rewind(edgedecode_session* session, int32_t turns);

/* Gives memory back: 0 nothing, 1 draft models and what drafts hold, until the folder is opened again, 2 also the
 * contexts of conversations without a running answer, which their next answers read again. The text of running and
 * later answers stays the same. Returns the bytes given back, or a negative number. Android: `onTrimMemory`. */
EDGEDECODE_API int64_t edgedecode_trim_memory(edgedecode_pack* pack, int32_t level);

/* The bytes of a token, of which at most `most` are written; special ones begin with 0xFF, as llguidance wants them.
 * Returns how many there are: none for an id that the vocabulary lacks. */
EDGEDECODE_API int32_t edgedecode_token_bytes(edgedecode_pack* pack, int32_t token, uint8_t* bytes, int32_t most);

/* Writes the ids of a text, at most `most`, and returns how many there are; none for a text that is not UTF-8. Names of
 * special tokens in it stay text. An `LlgTokenizeFn` of llguidance, with the pack as its data. */
EDGEDECODE_API size_t edgedecode_tokenize(const void* pack, const uint8_t* text, size_t size, uint32_t* ids,
                                          size_t most);

/* Restricts an answer. These are functions of llguidance's C interface, with an `LlgMatcher*` as `user`:
 * mask    llg_matcher_compute_mask_into: writes the allowed ids as bits, `nbytes` a multiple of 4; returns 0.
 * commit  llg_matcher_consume_token: takes a token of the answer, but not what ends it; returns 0 if it was allowed.
 * allows  llg_matcher_validate_tokens: returns how many of the ids may come next. Null: nothing is drafted.
 * forced  llg_matcher_compute_ff_tokens: writes at most `most` ids that must follow, returns how many. May be null.
 * All are called from the thread of `edgedecode_generate`. */
typedef struct edgedecode_constraint {
  void* user;
  int32_t (*mask)(void* user, uint32_t* bits, size_t nbytes);
  int32_t (*commit)(void* user, uint32_t token);
  int32_t (*allows)(void* user, const uint32_t* ids, size_t count);
  int32_t (*forced)(void* user, uint32_t* ids, size_t most);
} edgedecode_constraint;

/* Restricts the next answers, each of which needs `user` at its start (llg_matcher_reset); null: no longer. The struct is
 * copied. */
EDGEDECODE_API int32_t edgedecode_constrain(edgedecode_session* session, const edgedecode_constraint* constraint);

#ifdef __cplusplus
}
#endif
#endif
