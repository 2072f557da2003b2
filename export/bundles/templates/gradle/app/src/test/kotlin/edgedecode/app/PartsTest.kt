package edgedecode.app

import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test

/** The sampler, and reading of bundle.json. */
class PartsTest {
    private val row = floatArrayOf(0f, 3f, 2f, 1f)

    @Test
    fun samplerIsGreedyWithoutTemperatureAndWithOneTokenKept() {
        val few = listOf(Sampler(1.0, topK = 1), Sampler(1.0, topP = 0.1), Sampler(1.0, topK = 3, topP = 0.1))
        for (sampler in few + Sampler()) assertEquals(List(9) { 1 }, List(9) { sampler(row) })
    }

    @Test
    fun sameSeedGivesTheSameTokens() {
        val (one, other) = List(2) { Sampler(2.0, seed = 7) }.map { sampler -> List(99) { sampler(row) } }
        assertEquals(one, other)
        assertEquals(setOf(0, 1, 2, 3), one.toSet())
    }

    @Test
    fun tokensComeAsOftenAsTheirWeightsSay() {
        val sampler = Sampler(1.0, topK = 3, topP = 0.95)
        val found = List(20000) { sampler(row) }.groupingBy { it }.eachCount()
        assertEquals(setOf(1, 2, 3), found.keys) // 0.67 + 0.24 of three are less than 0.95
        assertEquals(0.665, found.getValue(1) / 20000.0, 0.02)
        assertEquals(setOf(1, 2), List(999) { Sampler(1.0, topP = 0.8, seed = it.toLong())(row) }.toSet())
    }

    @Test
    fun jsonIsReadAndDamageIsNamed() {
        val json = """{"a": [1, -2.5e1, true, null, "A\u00e9\n\"\\"], "b": {}, "c": [ ]}"""
        val list = listOf(1L, -25.0, true, null, "Aé\n\"\\")
        assertEquals(mapOf("a" to list, "b" to mapOf<String, Any>(), "c" to listOf<Any>()), parseJson(json))
        for (bad in listOf("", "{", "[1,", "[1 2]", "{\"a\" 1}", "nul", "\"", "\"\\u12", "[1]x", "1.2.3")) {
            assertTrue(bad, runCatching { parseJson(bad) }.exceptionOrNull() is BundleException)
        }
    }

    @Test
    fun bundleSaysWhichFilesAChipNeeds() {
        val bundle = Bundle.parse(BUNDLE)
        assertEquals(setOf(2, 0), bundle.ends)
        assertEquals(DevicePlan(context = 512, threads = 4, draftLength = 3, leastChance = 0.25), bundle.plan)
        val cpu = setOf("models/tokenizer.json", "models/target/weights.bin", "models/target/base.onnx")
        assertEquals(cpu, bundle.needed(null))
        assertEquals(cpu, bundle.needed(43))
        assertEquals(cpu + setOf("npu/57_v75/d1.onnx", "npu/57_v75/d1_qnn.bin"), bundle.needed(57))
        assertEquals(57, Bundle.chip(SOC_MAP, "SM8650"))
        assertEquals(null, Bundle.chip(SOC_MAP, "Tensor G5"))
        val error = runCatching { Bundle.parse("""{"format": "edgedecode-pack"}""") }.exceptionOrNull()
        assertEquals("this is not a bundle of edgedecode", error?.message)
    }

    private companion object {
        const val SOC_MAP = """{"chips": [{"soc": 57, "soc_models": ["SM8650"]}], "otherwise": "cpu"}"""
        const val BUNDLE = """{"format": "edgedecode-bundle", "version": 1, "name": "demo", "models": {"target": {
            "weights": "models/target/weights.bin", "window": 0, "graphs": [
            {"file": "models/target/base.onnx", "provider": "cpu", "width": 0, "slots": 0, "binary": "", "socs": []},
            {"file": "npu/57_v75/d1.onnx", "provider": "qnn", "width": 1, "slots": 512,
             "binary": "npu/57_v75/d1_qnn.bin", "socs": [57]}]}},
            "tokenizer": "models/tokenizer.json",
            "generation": {"end_token_ids": [2, 0], "sampling": {}, "max_tokens": 256},
            "plan": {"context": 512, "threads": 4, "draft_length": 3, "least_chance": 0.25}}"""
    }
}
