package edgedecode.app

import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test

/**
 * Replays the rounds that edgedecode recorded with the Python loop, the bundle's selftest/rounds.json.
 *
 * The models are scripted: the target continues the recorded answer, the draft model proposes the recorded drafts.
 */
class DecodeTest {
    @Test
    fun roundsAreThoseOfThePythonLoop() {
        val text = checkNotNull(javaClass.getResource("/rounds.json")) { "no rounds.json" }.readText()
        val recorded = recorded(parseJson(text))
        assertTrue(recorded.isNotEmpty())
        for (each in recorded) {
            val target = ScriptedModel(each, isTarget = true)
            val draft = ScriptedModel(each, isTarget = false)
            val found = decode(
                target, draft, each.prompt, each.most, each.ends, draftLength = each.draftLength, leastChance = 0.5,
            )
            assertEquals(each.answer, found)
        }
        println("replayed ${recorded.size} answers, ${recorded.sumOf { it.answer.rounds.size }} rounds")
    }

    @Test
    fun withoutDraftModelTheAnswerIsTheSame() {
        val prompt = listOf(3, 1, 4)
        val answer = Answer(listOf(1, 5, 9, 2), List(4) { Round(3 + it, emptyList(), listOf(listOf(1, 5, 9, 2)[it])) })
        val each = Recorded(prompt, 10, setOf(2), 0, answer)
        assertEquals(answer, decode(ScriptedModel(each, isTarget = true), null, prompt, 10, setOf(2)))
    }

    @Test
    fun answerStopsWhenToldTo() {
        val rounds = listOf(Round(1, emptyList(), listOf(1)), Round(2, emptyList(), listOf(1)))
        val each = Recorded(listOf(0), 9, emptySet(), 0, Answer(List(9) { 1 }, rounds))
        var seen = 0
        val target = ScriptedModel(each, isTarget = true)
        val found = decode(target, null, listOf(0), 9, emptySet(), onRound = { ++seen < 2 })
        assertEquals(Answer(listOf(1, 1), rounds), found)
    }

    /** One answer as recorded. */
    private class Recorded(
        val prompt: List<Int>,
        val most: Int,
        val ends: Set<Int>,
        val draftLength: Int,
        val answer: Answer,
        val context: Int = LONG,
        val draftContext: Int = LONG,
    ) {
        /** The length of the text at which the answer ends at the latest. */
        val end get() = prompt.size + minOf(most, context - prompt.size)
    }

    private fun recorded(json: Any?): List<Recorded> {
        val all = Fields(if (json is List<*>) mapOf("conversations" to json) else json, "rounds.json")
        return all.list("conversations").map { each ->
            val rounds = each.list("rounds").map { Round(it.int("known"), it.ints("drafts"), it.ints("chosen")) }
            Recorded(
                each.ints("prompt"), each.int("most"), each.ints("ends").toSet(), each.int("draft_length"),
                Answer(each.ints("answer"), rounds),
                each.optional("context")?.toInt() ?: LONG, each.optional("draft_context")?.toInt() ?: LONG,
            )
        }
    }

    /** Says what was recorded, and checks that it is asked about the recorded text, with the round's drafts behind. */
    private class ScriptedModel(private val recorded: Recorded, private val isTarget: Boolean) : Model {
        override val context = if (isTarget) recorded.context else recorded.draftContext
        override val length get() = read.size

        private val text = recorded.prompt + recorded.answer.tokens
        private val rounds = recorded.answer.rounds
        private val vocabulary = (text + rounds.flatMap { it.drafts }).max() + 2
        private val read = mutableListOf<Int>()
        private var round = 0

        override fun read(tokens: List<Int>, scored: Int): List<FloatArray> {
            val now = rounds.getOrElse(round) { Round(text.size, emptyList(), emptyList()) }
            read += tokens
            assertTrue(read.size <= context)
            assertEquals(text.take(now.known), read.take(now.known))
            assertEquals(now.drafts.take(read.size - now.known), read.drop(now.known))
            if (!isTarget) { // the first round has no drafts, and no round more than there is room for
                val room = minOf(recorded.draftLength, recorded.end - now.known - 1, context - now.known + 1)
                assertTrue(round > 0 && read.size - now.known < room)
            }
            return (read.size - scored + 1..read.size).map { after ->
                val token = if (isTarget) text.getOrNull(after) else now.drafts.getOrNull(after - now.known)
                FloatArray(vocabulary).also { if (token != null) it[token] = 100f } // flat: no draft is worth it
            }
        }

        /** The loop crops each model once after each round. */
        override fun crop(length: Int) {
            while (read.size > length) read.removeAt(read.size - 1)
            round++
        }
    }

    private companion object {
        /** A context that no recorded answer reaches. */
        const val LONG = 1 shl 20
    }
}
