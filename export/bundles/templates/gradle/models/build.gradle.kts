plugins { id("com.android.ai-pack") }

// Play delivers the bundle with the app. A pack may have 1.5 GB: for more, split it and see README.md.
aiPack {
    packName.set("models")
    dynamicDelivery { deliveryType.set("install-time") }
}
