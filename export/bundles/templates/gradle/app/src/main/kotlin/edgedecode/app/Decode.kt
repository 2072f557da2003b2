package edgedecode.app

import kotlin.math.exp

// Verified speculative decoding: the same loop as selftest/decode.py, name by name. It needs nothing but Kotlin, so
// that DecodeTest can replay the rounds that Python recorded.

/** A language model with the keys and values of the tokens that it has read. */
interface Model {
    /** How many tokens it has read. */
    val length: Int

    /** How many it can read. */
    val context: Int

    /** Read [tokens] after the others; return the logits after each of the last [scored], a row each. */
    fun read(tokens: List<Int>, scored: Int): List<FloatArray>

    /** Forget all tokens after the first [length]. */
    fun crop(length: Int)
}

/**
 * One pass of the target: how many tokens of the text there were, the drafts, and the tokens that followed.
 *
 * [chosen] holds the target's choices, the accepted drafts first: all drafts before the last choice were right.
 */
data class Round(val known: Int, val drafts: List<Int>, val chosen: List<Int>)

/** An answer's tokens, and the rounds that made it. */
data class Answer(val tokens: List<Int>, val rounds: List<Round>)

/**
 * Answer a prompt with at most [most] tokens.
 *
 * The draft model proposes up to [draftLength] tokens, and stops below a chance of [leastChance]. The target reads
 * them all in one pass. [choose] picks a token from each row of its logits, and the first choice that differs from a
 * draft ends the round. Each token of the answer is therefore the target's own choice, whatever the drafts, and with
 * random choices its distribution is the target's too. [onRound] sees each round as it ends; false stops the answer.
 */
fun decode(
    target: Model,
    draft: Model?,
    prompt: List<Int>,
    most: Int,
    ends: Set<Int>,
    draftLength: Int = 0,
    leastChance: Double = 0.0,
    choose: (FloatArray) -> Int = ::likeliest,
    onRound: (Round) -> Boolean = { true },
): Answer {
    val tokens = prompt.toMutableList()
    val rounds = mutableListOf<Round>()
    val end = prompt.size + minOf(most, target.context - prompt.size)
    var new = prompt // what the target has not read yet
    while (tokens.size < end) {
        val drafts = if (draft != null && rounds.isNotEmpty()) {
            propose(draft, tokens, minOf(draftLength, end - tokens.size - 1), leastChance)
        } else {
            emptyList()
        }
        val rows = target.read(new + drafts, scored = drafts.size + 1)
        val chosen = mutableListOf<Int>()
        for (row in rows) {
            val token = choose(row)
            chosen += token
            if (token in ends || token != drafts.getOrNull(chosen.size - 1)) break
        }
        val round = Round(tokens.size, drafts, chosen)
        rounds += round
        tokens += chosen
        // Keys and values of rejected drafts are dropped. The last choice has not been read.
        target.crop(tokens.size - 1)
        draft?.crop(minOf(draft.length, tokens.size - 1))
        new = tokens.takeLast(1)
        if (!onRound(round) || tokens.last() in ends) break
    }
    return Answer(tokens.drop(prompt.size), rounds)
}

/** Return up to [length] tokens after [tokens], each the draft model's likeliest. */
fun propose(draft: Model, tokens: List<Int>, length: Int, leastChance: Double): List<Int> {
    val room = minOf(length, draft.context - tokens.size + 1)
    val drafts = mutableListOf<Int>()
    var unread = tokens.drop(draft.length)
    while (drafts.size < room) {
        val row = draft.read(unread, scored = 1).single()
        val token = likeliest(row)
        if (leastChance > 0 && chance(row, token) < leastChance) break
        drafts += token
        unread = listOf(token)
    }
    return drafts
}

/** Return the token with the largest logit; of equal ones the first. */
fun likeliest(row: FloatArray): Int {
    var best = 0
    for (token in row.indices) if (row[token] > row[best]) best = token
    return best
}

/** Return the probability of [token], which has the largest logit. */
private fun chance(row: FloatArray, token: Int): Double = 1 / row.sumOf { exp((it - row[token]).toDouble()) }
